import fozo
from fozo.methods.sar import SAR
from fozo.state import same
from tests.methods.rival_traces import engine, load, pixels


def test_the_default_does_not_step_without_a_sure_prediction() -> None:
    trace = load("sar_official_edge_continual")
    options = {"rate": trace.hp["lr"], "e_margin": 0.3}
    default = fozo.create("sar", engine(), **options)
    empty = 10  # a batch of this trace in which no prediction is reliable
    for t in range(empty):
        default(trace.batch(t))
    before = default.state().norms
    default(trace.batch(empty))
    assert (default.state().norms == before).all()
    theirs = [trace.after("ln_after", t) for t in (empty - 1, empty)]
    assert theirs[0] is not None and theirs[1] is not None
    assert (theirs[0] != theirs[1]).any()  # whereas the authors' program moved


def test_a_recovery_forgets_momentum_and_average_too() -> None:
    method = fozo.create("sar", engine(), reset_threshold=100.0, e_margin=1.0)  # every loss is a collapse
    new = method.state()
    method(pixels("stream")[:16])
    assert same(method.state(), new)


def test_the_rate_doubles_for_single_images() -> None:
    method = SAR(engine(), batch_size=1)
    assert method.config.step_size == 2 * 0.001 / 64


def test_the_authors_reset_keeps_the_momentum() -> None:
    for preset, keeps in (("paper", False), ("official", True)):
        method = fozo.create("sar", engine(), preset=preset, e_margin=1.0)
        method(pixels("stream")[:16])
        velocity = method.state().velocity
        method.reset()
        assert velocity.any()
        assert (method.state().velocity == (velocity if keeps else 0)).all()
        assert (method.state().norms == method.init().norms).all()
