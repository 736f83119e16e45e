from dataclasses import replace

import fozo
from fozo.methods.eata import EATA, measure_fisher
from tests.methods.rival_traces import engine, pixels
from tests.methods.test_golden import fisher
from tests.refusals import refuses


def test_reset_forgets_the_average_prediction_by_default() -> None:
    for preset, forgets in (("paper", True), ("official", False)):
        method = EATA(engine(), preset=preset, fisher=fisher())
        method(pixels("stream")[:16])
        method.reset()
        assert (method.state().averaged == 0) == forgets
        assert (not method.state().average.any()) == forgets


def test_asks_for_the_fisher_information_of_this_model() -> None:
    refuses("needs fisher=", fozo.create, "eata", engine())
    refuses("at least one batch", measure_fisher, engine(), [])
    refuses("measure it again", fozo.create, "eata", engine(), fisher=replace(fisher(), fingerprint="0" * 32))
