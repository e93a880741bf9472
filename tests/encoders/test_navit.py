"""NaViT: recorded outputs, and no information flow between images that share a sequence."""

import pytest
import torch
from torch import Tensor

from page4d.errors import ShapeError, UsageError
from page4d.networks.encoders.navit import NaViT, NaViTConfig
from page4d.networks.layers.window import group_in_order
from tests.encoders.recorded import Recorded, assert_recorded, channels_last, load_recorded

SMALL = NaViTConfig(
    image_size=64, patch_size=8, embed_dim=24, depth=2, num_heads=2, head_dim=8, max_tokens=30, num_classes=5
)
SIZES = [(16, 40), (40, 16), (64, 8), (24, 24), (48, 40)]


def recorded_navit(recorded: Recorded) -> NaViT:
    given = recorded.config
    patch = given["patch_size"]
    config = NaViTConfig(
        image_size=given["image_size"][0],
        image_width=given["image_size"][1],
        patch_size=patch,
        embed_dim=given["dim"],
        depth=given["depth"],
        num_heads=given["heads"],
        head_dim=given["dim_head"],
        mlp_ratio=given["mlp_dim"] / given["dim"],
        max_tokens=recorded.meta["max_seq_len"],
        token_dropout=given.get("token_dropout_prob", 0.0),
        num_classes=given["num_classes"],
    )
    theirs = {name: value for name, value in recorded.part("weights/").items() if not name.endswith("beta")}
    ours = {
        "patches.patch_norm.weight": channels_last(theirs.pop("to_patch_embedding.0.gamma"), (patch, patch)),
        "patches.proj.weight": channels_last(theirs.pop("to_patch_embedding.1.weight"), (patch, patch)),
        "patches.proj.bias": theirs.pop("to_patch_embedding.1.bias"),
        "patches.norm.weight": theirs.pop("to_patch_embedding.2.gamma"),
        "row_embed": theirs.pop("pos_embed_height")[None],
        "column_embed": theirs.pop("pos_embed_width")[None],
        "norm.weight": theirs.pop("transformer.norm.gamma"),
        "pool.query": theirs.pop("attn_pool_queries"),
        "head.0.weight": theirs.pop("mlp_head.0.gamma"),
        "head.1.weight": theirs.pop("mlp_head.1.weight"),
    }

    def attention(norm: str, target: str, source: str) -> None:
        ours[f"{norm}.weight"] = theirs.pop(f"{source}.norm.gamma")
        ours[f"{target}.qkv.weight"] = torch.cat(
            [theirs.pop(f"{source}.{part}.weight") for part in ("to_q", "to_kv")]
        )
        for part in ("q_norm", "k_norm"):
            ours[f"{target}.{part}.gamma"] = theirs.pop(f"{source}.{part}.gamma")[None]
        ours[f"{target}.proj.weight"] = theirs.pop(f"{source}.to_out.0.weight")

    attention("pool.norm", "pool.attn", "attn_pool")
    for index in range(config.depth):
        source, block = f"transformer.layers.{index}", f"blocks.{index}"
        attention(f"{block}.norm1", f"{block}.attn", f"{source}.0")
        ours[f"{block}.norm2.weight"] = theirs.pop(f"{source}.1.0.gamma")
        for part, number in (("fc1", 1), ("fc2", 4)):
            for kind in ("weight", "bias"):
                ours[f"{block}.mlp.{part}.{kind}"] = theirs.pop(f"{source}.1.{number}.{kind}")
    assert not theirs
    network = NaViT(config)
    network.load_state_dict(ours)
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["navit_a", "navit_b", "navit_drop_a"])
def test_outputs_match_the_recordings(name: str) -> None:
    recorded = load_recorded(name)
    network = recorded_navit(recorded)
    images = [recorded[f"input/image_{index}"] for index in range(len(recorded.meta["image_hw"]))]
    noise = None
    if recorded.meta["token_dropout"]:
        noise = [recorded[f"input/keep_noise_{index}"] for index in range(len(images))]
    packing = network.pack(images, noise)
    assert torch.equal(packing.images, recorded["mid/image_ids"])
    assert torch.equal(packing.lengths, recorded["mid/lengths"])
    assert torch.equal(packing.num_images, recorded["mid/num_images"])
    real = recorded["mid/key_pad_mask"]
    assert torch.equal(packing.is_token, real)
    assert torch.equal(packing.within_images() == 0, recorded["mid/attn_mask"])
    assert torch.equal(packing.of_images() == 0, recorded["mid/pool_mask"])
    assert torch.equal(packing.positions, recorded["mid/positions_hw"])
    patches = channels_last(recorded["mid/packed_patches"], (network.config.patch_size,) * 2)
    assert_recorded(packing.patches[real], patches[real])
    tokens = network.embed(packing.patches, packing.positions)
    assert_recorded(tokens[real], recorded["mid/tokens_in"][real])
    block = network.blocks[0]
    attended = block.attn(block.norm1(tokens), pair_logits=packing.within_images())
    assert_recorded(attended[real], recorded["mid/block0_attn_out"][real])
    assert_recorded(network.transform(tokens, packing)[real], recorded["mid/transformer_out"][real])
    assert_recorded(network.forward_features(images, noise), recorded["mid/pooled"])
    assert_recorded(network.head(network.forward_features(images, noise)), recorded["output/logits"])


def some_images() -> list[Tensor]:
    return [torch.rand(3, *size, dtype=torch.float64) for size in SIZES]


def test_packed_images_equal_images_encoded_separately() -> None:
    network, images = NaViT(SMALL).double().eval(), some_images()
    assert network.pack(images).num_images.tolist() == [3, 1, 1], "several images share a sequence"
    packing = network.pack(images)
    encoded = network.transform(network.embed(packing.patches, packing.positions), packing)[packing.is_token]
    pooled, alone = network.forward_features(images), [network(image[None]) for image in images]
    torch.testing.assert_close(encoded, torch.cat([one.tokens[0] for one in alone]), rtol=0, atol=1e-12)
    for index, image in enumerate(images):
        assert alone[index].grid == (SIZES[index][0] // 8, SIZES[index][1] // 8)
        torch.testing.assert_close(pooled[index], network.forward_features([image])[0], rtol=0, atol=1e-12)


def test_no_gradient_flows_between_images() -> None:
    network, images = NaViT(SMALL).double(), some_images()
    images[1].requires_grad_()
    features = network.forward_features(images)
    (gradient,) = torch.autograd.grad(features[[0, 2, 3, 4]].sum(), images[1], retain_graph=True, allow_unused=True)
    assert gradient is None or not gradient.any()
    (gradient,) = torch.autograd.grad(features[1].sum(), images[1])
    assert gradient.any()


def test_token_dropout_drops_its_fraction_of_every_image_in_training_only() -> None:
    network = NaViT(NaViTConfig(**{**vars(SMALL), "token_dropout": 0.5}))
    images = [torch.rand(3, *size) for size in SIZES]
    noise = [torch.randn(size[0] * size[1] // 64) for size in SIZES]
    assert network.pack(images, noise).lengths.sum() == sum(size[0] * size[1] // 64 // 2 for size in SIZES)
    assert not torch.equal(network.classify(images), network.classify(images))
    assert torch.equal(network.eval().classify(images), network.classify(images))


def test_sequences_are_filled_in_order() -> None:
    assert group_in_order([10, 20, 1, 29, 30, 5], 30) == [range(2), range(2, 4), range(4, 5), range(5, 6)]
    assert group_in_order([], 30) == []
    with pytest.raises(ShapeError, match="image 1 has 31 patches"):
        group_in_order([3, 31], 30)


def test_images_beyond_the_position_tables_are_refused() -> None:
    with pytest.raises(ShapeError, match="9 x 1 patches, the position tables cover 8 x 8"):
        NaViT(SMALL)(torch.rand(1, 3, 72, 8))
    with pytest.raises(UsageError, match="no pooling"):
        NaViT(NaViTConfig(**{**vars(SMALL), "num_classes": None})).forward_features([torch.rand(3, 8, 8)])
