"""The checkpoint that is suggested for a machine and a use."""

import pytest

from page4d.networks.presets import PRESETS
from page4d.networks.profile.network import profile_network
from page4d.weights.catalogue import CATALOGUE, PREFERENCE, choose_checkpoint, command_with, needed_bytes

GB = 1_000_000_000


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", PREFERENCE)
def test_the_preferred_one_that_fits(name: str, half: bool) -> None:
    needed = needed_bytes(CATALOGUE[name], half=half)
    stronger = PREFERENCE[: PREFERENCE.index(name)]
    fitting = [other for other in stronger if needed_bytes(CATALOGUE[other], half=half) <= needed]
    assert choose_checkpoint(needed, commercial=False, half=half) is CATALOGUE[[*fitting, name][0]]


def test_only_licences_that_permit_it_are_suggested_for_commercial_use() -> None:
    assert choose_checkpoint(64 * GB, commercial=False) is CATALOGUE["da3-giant"]
    assert choose_checkpoint(64 * GB, commercial=True) is CATALOGUE["da3-base"]


def test_little_memory_gets_the_small_one_and_less_gets_none() -> None:
    needed = needed_bytes(CATALOGUE["da3-small"])
    small = choose_checkpoint(needed, commercial=True)
    assert small is CATALOGUE["da3-small"]
    assert choose_checkpoint(needed - 1, commercial=False) is None
    assert needed_bytes(small, half=True) < needed


def test_what_is_suggested_needs_no_application_and_predicts_cameras() -> None:
    chosen = [CATALOGUE[name] for name in PREFERENCE]
    assert not [
        entry for entry in chosen if entry.gated or not entry.predicts_cameras or entry.licence == "not stated"
    ]
    assert any(entry.commercial for entry in chosen)
    assert command_with(chosen[-1]).split()[-2:] == ["--weights", "da3-small"]


@pytest.mark.parametrize(
    "name",
    [
        "da3-small",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "da3-base",
                "da3-large",
                "da3-giant",
                "da3-nested",
                "da3-mono",
                "da3-metric",
                "vggt",
                "page4d-mask",
                "pi3",
                "pi3x",
                "vggt-omega",
            )
        ),
    ],
)
def test_the_memory_per_image_is_that_of_a_profile(name: str) -> None:
    config = PRESETS[name]
    size = (28 * config.patch_size, 37 * config.patch_size)
    profiles = [profile_network(config, times=1, views=views, size=size) for views in (1, 2)]
    per_pixel = (profiles[1].computed_bytes - profiles[0].computed_bytes) / (size[0] * size[1])
    assert 0.99 * per_pixel <= CATALOGUE[name].image_bytes / (518 * 392) <= 1.05 * per_pixel
