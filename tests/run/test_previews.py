"""The banner of the preview pictures."""

from types import SimpleNamespace

import pytest

from page4d.options import in_options
from page4d.output.record import UNTRAINED_NOTICE, NetworkRecord, RunRecord
from page4d.run.domain import Domain, KnownCameras
from page4d.weights.catalogue import CATALOGUE
from page4d.weights.loading import BUNDLED_NOTICE

BUNDLED = NetworkRecord(name="mv-demo", trained=True, notice=BUNDLED_NOTICE)
DOMAIN = Domain(ratios={"doubt": 1.5}, known=KnownCameras("calibrated", True, 3.0))
ADVISES = in_options(DOMAIN.notices()[0].marked_text)
UNLIKE = ADVISES.removesuffix("; give --depth FOLDER for depth")
SUGGESTS = in_options(DOMAIN.notices(CATALOGUE["da3-small"])[0].marked_text)


@pytest.mark.parametrize(
    ("network", "warnings", "text"),
    [
        (BUNDLED, [BUNDLED_NOTICE, "common span 0.00-0.08 s"], ""),
        (BUNDLED, [BUNDLED_NOTICE, UNLIKE], UNLIKE),
        (BUNDLED, [ADVISES], UNLIKE),
        (BUNDLED, [SUGGESTS], UNLIKE),
        (NetworkRecord(name="own", trained=True), [UNLIKE], UNLIKE),
        (NetworkRecord(name="x", trained=False), [], UNTRAINED_NOTICE),
    ],
    ids=[
        "the sample",
        "footage unlike the training set",
        "an advice",
        "a suggestion",
        "an own network",
        "an untrained network",
    ],
)
def test_the_banner_warns_of_results_that_are_not_to_be_trusted(network, warnings, text) -> None:
    assert RunRecord.banner.fget(SimpleNamespace(network=network, warnings=warnings)) == text


def test_the_warning_names_the_option_of_a_checkpoint_its_licence_and_its_size() -> None:
    assert SUGGESTS.endswith("--weights da3-small (Apache-2.0, 0.1 GB)")
