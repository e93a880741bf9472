"""Swin: recorded outputs, shifted windows against brute force, and the levels of the pyramid."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from page4d.networks.encoders.swin import Swin, SwinConfig
from page4d.networks.layers.window import ShiftedWindowAttention, offset_index, shifted_mask
from tests.encoders.recorded import Recorded, assert_recorded, load_recorded, translated

MICROSOFT = (
    (r"patch_embed\.proj\.(.*)", r"patch_embed.proj.\1"),
    (r"patch_embed\.norm\.(.*)", r"patch_norm.\1"),
    (r"absolute_pos_embed", "pos_embed"),
    (r"layers\.0\.downsample\.(.*)", r"stages.1.merging.\1"),
    (r"layers\.1\.downsample\.(.*)", r"stages.2.merging.\1"),
    (r"layers\.(\d)\.(blocks\.\d+)\.attn\.relative_position_bias_table", r"stages.\1.\2.attn.offset_table"),
    (r"layers\.(\d)\.(blocks\.\d+)\.attn\.((?:qkv|proj)\..*)", r"stages.\1.\2.attn.inside.\3"),
    (r"layers\.(\d)\.(blocks\..*)", r"stages.\1.\2"),
    (r"norm\.(.*)", r"norm.\1"),
    (r"head\.(?:fc\.)?(.*)", r"head.\1"),
)
TIMM = ((r"layers\.1\.downsample\.(.*)", r"stages.1.merging.\1"), *MICROSOFT)
SMALL = SwinConfig(image_size=32, first_patch=2, dim=8, depths=(2, 2), num_heads=(2, 4), window=4)


def recorded_swin(recorded: Recorded) -> Swin:
    given = recorded.config
    config = SwinConfig(
        image_size=given["img_size"][0],
        first_patch=given["patch_size"],
        dim=given["embed_dim"],
        depths=tuple(given["depths"]),
        num_heads=tuple(given["num_heads"]),
        window=given["window_size"],
        mlp_ratio=given["mlp_ratio"],
        qkv_bias=given["qkv_bias"],
        patch_norm=given.get("patch_norm", True),
        absolute_positions=given.get("ape", False),
        num_classes=given["num_classes"],
    )
    network = Swin(config)
    rules = TIMM if recorded.meta["reference"] == "timm" else MICROSOFT
    weights = translated(recorded.part("weights/"), rules)
    network.load_state_dict({name: value[None] if "table" in name else value for name, value in weights.items()})
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["square_a", "nonsquare_a", "clamp_a", "clampns_a", "ape_a", "pad_a"])
def test_outputs_match_the_recordings(name: str) -> None:
    recorded = load_recorded(f"swin_{name}")
    network, images = recorded_swin(recorded), recorded["input/images"]

    def agrees(maps: Tensor, reference: str) -> None:
        assert_recorded(maps.flatten(1, 2), recorded[f"mid/{reference}"].flatten(1, -2))

    maps = network.embed(images)
    if "pos_embed" not in network.state_dict():
        agrees(maps, "patch_embed")
    for number, stage in enumerate(network.stages):
        maps = stage.merging(maps)
        if number and f"mid/stage{number - 1}_merge" in recorded.tensors:
            agrees(maps, f"stage{number - 1}_merge")
        for index, block in enumerate(stage.blocks):
            maps = block(maps)
            agrees(maps, f"stage{number}_block{index}")
            mask = recorded.tensors.get(f"mid/stage{number}_block{index}_attn_mask")
            if mask is not None:
                padded = [-side % 4 + side for side in maps.shape[1:3]]
                assert torch.equal(shifted_mask((padded[0], padded[1]), 4, 2), mask)
        offsets = recorded.tensors.get(f"mid/stage{number}_relative_position_index")
        if offsets is not None:
            assert torch.equal(offset_index(4), offsets)
    agrees(network.norm(maps), "norm_out")
    assert_recorded(network.classify(images), recorded["output/logits"])


def true_window(row: int, column: int, window: int, shift: int) -> tuple[int, int]:
    """The window of a position when windows start `shift` before the top left corner and end at the borders."""
    return (row + window - shift) // window, (column + window - shift) // window


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("grid", [(8, 12), (12, 8)])
def test_shifted_windows_equal_brute_force_over_true_neighbours(grid: tuple[int, int], shift: int) -> None:
    """Per token: attention to the tokens of its window, with the bias of their offset."""
    window, heads, width = 4, 2, 6
    layer = ShiftedWindowAttention(heads * width, heads, window, shift=shift).double().requires_grad_(False)
    layer.offset_table.normal_()
    maps = torch.randn(1, *grid, heads * width, dtype=torch.float64)
    query, key, value = layer.inside.qkv(maps[0]).unflatten(-1, (3, heads, width)).unbind(2)
    expected = torch.empty(*grid, heads, width, dtype=torch.float64)
    places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    table = layer.offset_table[0].unflatten(0, (2 * window - 1, 2 * window - 1))
    for place in places:
        group = true_window(*place, window, shift)
        near = [other for other in places if true_window(*other, window, shift) == group]
        for head in range(heads):
            logits = torch.stack(
                [
                    query[place][head] @ key[other][head] / width**0.5
                    + table[place[0] - other[0] + window - 1, place[1] - other[1] + window - 1, head]
                    for other in near
                ]
            )
            values = torch.stack([value[other][head] for other in near])
            expected[place][head] = logits.softmax(0) @ values
    torch.testing.assert_close(layer(maps)[0], layer.inside.proj(expected.flatten(-2)), rtol=0, atol=1e-12)


def test_a_map_no_larger_than_a_window_has_one_window_and_the_middle_of_the_table() -> None:
    layer = ShiftedWindowAttention(8, 2, 5, shift=2).double().requires_grad_(False)
    smaller = ShiftedWindowAttention(8, 2, 3).double().requires_grad_(False)
    smaller.inside.load_state_dict(layer.inside.state_dict())
    smaller.offset_table.copy_(layer.offset_table.reshape(1, 9, 9, 2)[:, 2:7, 2:7].flatten(1, 2))
    maps = torch.randn(2, 3, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(maps), smaller(maps), rtol=0, atol=1e-14)


@pytest.mark.parametrize("level", [None, 0, 1])
def test_tokens_are_those_of_the_configured_level(level: int | None) -> None:
    config = SwinConfig(**{**vars(SMALL), "level": level})
    network, images = Swin(config).double(), torch.rand(2, 3, 24, 40, dtype=torch.float64)
    encoded, levels = network(images), network.levels(images)
    assert [maps.shape[1:] for maps in levels] == [(12, 20, 8), (6, 10, 16)]
    expected = 1 if level is None else level
    assert encoded.grid == levels[expected].shape[1:3]
    assert encoded.tokens.shape == (2, encoded.grid[0] * encoded.grid[1], config.embed_dim)
    assert config.patch_size == 2 << expected
    if level is None:
        assert torch.equal(encoded.tokens, levels[-1].flatten(1, 2))


def test_fused_levels_are_spatially_aligned() -> None:
    """A change of one cell of a coarse level changes the fused tokens around that cell."""
    network = Swin(SwinConfig(**{**vars(SMALL), "level": 0})).double().requires_grad_(False)
    level = torch.zeros(1, 3, 3, 16, dtype=torch.float64)
    moved = level.clone()
    moved[0, 1, 2] = 1
    finest = torch.zeros(1, 6, 6, 8, dtype=torch.float64)
    network.fusion.norm = torch.nn.Identity()
    change = (network.fusion([finest, moved]) - network.fusion([finest, level])).abs().sum(-1)[0]
    rows, columns = change.sum(1), change.sum(0)
    centre = [float((side * (torch.arange(6) + 0.5)).sum() / side.sum()) for side in (rows, columns)]
    assert centre[0] == pytest.approx(3.0)
    assert change[2:4, 4:].min() > change[:1].max()


def test_maps_of_odd_sizes_are_encoded() -> None:
    odd = Swin(SwinConfig(**{**vars(SMALL), "level": 0}))(torch.rand(1, 3, 30, 22))
    assert odd.grid == (15, 11)


def test_stages_double_widths_and_patches() -> None:
    assert SwinConfig().dims == (96, 192, 384, 768)
    assert [SwinConfig(level=level).patch_size for level in range(4)] == list(accumulate([4, 2, 2, 2], int.__mul__))
