"""Masked autoencoder: recorded values, and the inputs of encoder and loss."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.errors import ShapeError, UsageError
from page4d.lab.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.networks.encoders.vit import Pooling, ViTConfig
from page4d.networks.layers.block import cut_patches, join_patches
from tests.encoders.recorded import VIT_RULES, Recorded, assert_recorded, load_recorded, translated, vit_config

SMALL = MAEConfig(
    encoder=ViTConfig(image_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, pooling=Pooling.MEAN),
    decoder_dim=16,
    decoder_depth=1,
    decoder_heads=2,
)
TRANSFORMER = [rule for rule in VIT_RULES if "transformer" in rule[0]]
RULES = (
    *((rf"encoder\.{theirs}", f"encoder.{ours}") for theirs, ours in VIT_RULES),
    *((theirs.replace("transformer", "decoder"), ours) for theirs, ours in TRANSFORMER),
    (r"decoder_pos_emb\.weight", "positions"),
    (r"enc_to_dec\.(.*)", r"to_decoder.\1"),
    (r"(mask_token|to_pixels\..*)", r"\1"),
)


def recorded_mae(recorded: Recorded) -> MaskedAutoencoder:
    given = recorded.config
    config = MAEConfig(
        encoder=vit_config(given["encoder"]),
        masked_share=given["masking_ratio"],
        normalise_patches=False,
        decoder_dim=given["decoder_dim"],
        decoder_depth=given["decoder_depth"],
        decoder_heads=given["decoder_heads"],
        decoder_head_dim=given["decoder_dim_head"],
    )
    weights = translated(recorded.part("weights/"), RULES)
    weights = {name: value for name, value in weights.items() if "head" not in name and value.numel()}
    rows, columns = config.encoder.table_grid
    weights["positions"] = weights["positions"][None, : rows * columns]  # the last entry is unused
    weights["mask_token"] = weights["mask_token"][None, None]
    network = MaskedAutoencoder(config)
    network.load_state_dict(weights)
    return network


@pytest.mark.parametrize("name", ["mae_a", "mae_b"])
def test_recorded_values(name: str) -> None:
    recorded = load_recorded(name)
    network, images = recorded_mae(recorded), recorded["input/images"]
    output = network(images, recorded["input/noise"])
    assert torch.equal(output.masking.masked, recorded["output/masked_indices"])
    assert torch.equal(output.masking.visible, recorded["output/unmasked_indices"])
    assert_recorded(network.to_patches(images), recorded["mid/patches"])
    encoded = network.encode(images, output.masking)
    assert_recorded(encoded, recorded["mid/encoder_out"])
    assert_recorded(network.to_decoder(encoded), recorded["mid/enc_to_dec_out"])
    assert_recorded(output.pixels, recorded["output/pred_pixels"])
    assert_recorded(output.loss[None], recorded["output/loss"])
    output.loss.backward()
    assert_recorded(network.mask_token.grad[0, 0], recorded["output/grad_mask_token"])
    assert_recorded(network.to_pixels.weight.grad, recorded["output/grad_to_pixels_weight"])
    assert_recorded(network.encoder.pos_embed.grad, recorded["output/grad_encoder_pos_embedding"])


@pytest.fixture
def network() -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(SMALL).double()


def images_of(*size: int) -> Tensor:
    return torch.rand(3, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("normalise", [True, False])
def test_the_loss_ignores_visible_patches_and_the_encoder_masked_ones(normalise: bool) -> None:
    network = MaskedAutoencoder(replace(SMALL, normalise_patches=normalise)).double()
    images, noise = images_of(32, 32), torch.rand(3, 16, dtype=torch.float64)
    masking = network(images, noise).masking
    encoded = network.encode(images, masking)
    chosen = masking.masked[..., None].expand(-1, -1, 192)
    patches = network.to_patches(images)
    filled = join_patches(patches.scatter(1, chosen, 7.0).unflatten(1, (4, 4)), (8, 8)).movedim(-1, 1)
    torch.testing.assert_close(network.encode(filled, masking), encoded, rtol=0, atol=1e-13)
    pixels = network.decode(encoded, masking, (4, 4))
    target = network.normalised(patches).gather(1, chosen)
    assert torch.equal(target, network.normalised(patches.gather(1, chosen))), "visible patches have no influence"
    if normalise:
        torch.testing.assert_close(target.mean(-1), torch.zeros_like(target[..., 0]), rtol=0, atol=1e-12)
        torch.testing.assert_close(target.std(-1), torch.ones_like(target[..., 0]), rtol=0, atol=1e-2)
    assert network(images, noise).loss.item() == pytest.approx((pixels - target).square().mean().item())


@pytest.mark.parametrize("size", [(32, 32), (16, 40)])
def test_a_step_lowers_the_loss_and_every_parameter_has_a_gradient(network: MaskedAutoencoder, size: tuple) -> None:
    images = images_of(*size)
    noise = torch.rand(3, size[0] * size[1] // 64, dtype=torch.float64)
    before = network(images, noise).loss
    before.backward()
    assert [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []
    torch.optim.AdamW(network.parameters(), lr=1e-3).step()
    assert network(images, noise).loss < before


def test_joining_inverts_cutting() -> None:
    maps = torch.rand(2, 12, 20, 3)
    assert torch.equal(join_patches(cut_patches(maps, (4, 5)), (4, 5)), maps)


def test_invalid_configurations_are_refused(network: MaskedAutoencoder) -> None:
    with pytest.raises(ShapeError, match="patches of 8 px"):
        network(images_of(32, 36))
    for change in (
        {"masked_share": 0.0},
        {"masked_share": 0.01},
        {"decoder_depth": 0},
        {"encoder": replace(SMALL.encoder, num_classes=3)},
    ):
        with pytest.raises(UsageError) as caught:
            replace(SMALL, **change)
        assert caught.value.hint
