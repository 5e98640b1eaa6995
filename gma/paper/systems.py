"""The paper's systems, its ablations, and later systems: what each changes in a recipe, and what moves its latency.

All systems of a recipe have layers of the same sizes, the same encoder and the same number of updates on the same
batches; a policy's own parameters come on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gma.errors import UserError

GROUPS = ("systems", "ablations")
# the systems compared at equal lag: Wait-k, one model for every k, and others with it
GMA, GAIN, ITST, WAIT_K = "gma", "gain", "itst", "wait-k"
# one model for each k, as Wait-k was published
WAIT_K_EACH = "wait-k-each"
REFERENCE = "ablation-gma"
# override that makes GMA as printed, and the name of that system where the recipe's own GMA differs
PRINTED, GMA_PRINTED = ("attention.width_rule=half",), "gma-printed"


@dataclass(frozen=True)
class Model:
    """A model to be trained.

    Attributes:
        name: of its folder.
        overrides: of the recipe, `section.key=value`.
        value: what is different about it where a system is several models.
        under: the name of the model, of another system, that this one is a segmenter for; it is trained if need be.
        latency: the one it is evaluated at, where its system has a model for each.
        seed: its place among the seeds of the budget, from 0.
    """

    name: str
    overrides: tuple[str, ...] = ()
    value: float | None = None
    under: str | None = None
    latency: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class System:
    """One line of a figure, or one row of the table of ablations.

    Attributes:
        name: on the command line.
        title: in tables and figures.
        group: one of `GROUPS`.
        symbol: what moves its latency: δ, k or θ when translating, λ by training a model for each; empty for nothing.
        latencies: what it is evaluated at; empty where nothing can be chosen when translating.
    """

    name: str
    title: str
    group: str
    models: tuple[Model, ...]
    symbol: str = ""
    latencies: tuple[float, ...] = ()

    def latencies_of(self, model: Model) -> tuple[float, ...]:
        """What a model is evaluated at; empty where nothing can be chosen when translating."""
        return self.latencies if model.latency is None else (model.latency,)

    def setting(self, model: Model, latency: float | None) -> str:
        """'δ = 2', or nothing."""
        value = model.value if model.value is not None else latency
        return "" if value is None else f"{self.symbol} = {value:g}".replace("inf", "∞")


@dataclass(frozen=True)
class Budget:
    """What is done with a recipe: the same overrides for all systems, and the points of each curve.

    No model is validated before its last update: that all have had the same number of updates would mean little if each
    then showed its best moment.

    Attributes:
        delta: δ of GMA in training, drawn from this range.
        averages, variances: weights λ of MMA-IL's and MMA-H's latency loss, one model each.
        thresholds: θ of MU.
        gains: θ of gain; empty to leave it out.
        shares: θ of ITST; empty to leave it out.
        each: k of Wait-k with a model for each; empty to leave it out.
        seeds: every system is trained with each of them.
        compared: names of the systems that are compared with Wait-k at equal lag …
        lags: … by these latencies, names of a point's.
        with_successors: whether published points of later systems stand beside.
        ablated: the one δ that the ablations are trained and tested with; the paper's is 1.
        with_printed: whether GMA as printed stands beside the recipe's own, which differs from it.
        standard: names of the systems that are made where none is asked for; empty for all, and the ablations.
        origin: how these values were come by, for the reader of the results.
    """

    overrides: tuple[str, ...]
    delta: tuple[float, float]
    deltas: tuple[float, ...]
    ks: tuple[float, ...]
    averages: tuple[float, ...]
    variances: tuple[float, ...]
    thresholds: tuple[float, ...]
    gains: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    each: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (1,)
    compared: tuple[str, ...] = (GMA,)
    lags: tuple[str, ...] = ("al",)
    with_successors: bool = False
    ablated: float = 1.0
    with_printed: bool = False
    standard: tuple[str, ...] = ()
    origin: str = "None of these values was tuned."


BUDGETS = {
    # made for two quiet cores: half an hour for the systems, and as long for the ablations
    "generated": Budget(
        overrides=(
            "training.updates=1500",
            "training.minutes=0",
            "training.tokens=1024",
            "training.validate_every=0",
            "training.validate_sentences=0",
            "training.keep_checkpoints=1",
        ),
        delta=(0.0, 7.0),
        deltas=(0.0, 1.0, 2.0, 3.0, 5.0, 7.0),
        ks=(1.0, 3.0, 5.0, 7.0, 9.0),
        averages=(0.01, 0.03, 0.1),
        variances=(0.05, 0.2),
        thresholds=(0.3, 0.5, 0.7, 0.9),
        gains=(1.0, 0.5, 0.2, 0.1),
        shares=(0.2, 0.4, 0.6, 0.8),
        origin="Batch size and updates, GMA's range of δ, and the use of the last update rather than of the one with "
        "the lowest validation loss, were settled after one trial run of GMA alone, scored on this test set too; λ "
        "after short runs of MMA at λ = 0.1. Nothing was tried out for Wait-k, MU and Offline.",
    ),
    # seven minutes a model on one core that multiplies bfloat16
    "multi30k-de-en": Budget(
        overrides=(
            "training.validate_every=0",
            "training.validate_sentences=0",
            "training.keep_checkpoints=1",
        ),
        delta=(0.0, 8.0),
        deltas=(0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0),
        ks=(1.0, 2.0, 3.0, 5.0, 7.0),
        averages=(0.03,),
        variances=(0.05, 0.2),
        thresholds=(0.3, 0.5, 0.7, 0.9),
        with_printed=True,
        standard=("offline", WAIT_K, "mma-il", GMA, GMA_PRINTED),
        origin="GMA's width was chosen among three, with and without one position for all layers, and its range of δ "
        "among three, after runs scored on this test set too (docs/results.md); nothing was tried out for the other "
        "systems.",
    ),
    # long sentences: half an hour a model on one core that multiplies bfloat16
    "europarl-de-en": Budget(
        overrides=(
            "training.validate_every=0",
            "training.validate_sentences=0",
            "training.keep_checkpoints=1",
        ),
        delta=(0.0, 10.0),
        deltas=(0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0),
        ks=(1.0, 2.0, 3.0, 5.0, 7.0),
        averages=(0.01, 0.03, 0.1),
        variances=(0.05, 0.2),
        thresholds=(0.3, 0.5, 0.7, 0.9),
        gains=(1.0, 0.5, 0.3, 0.2, 0.1, 0.05),
        shares=(0.2, 0.4, 0.6, 0.8, 0.9),
        each=(1.0, 3.0, 5.0, 7.0),
        seeds=(1, 2),
        compared=(GMA, GAIN, ITST),
        lags=("al", "laal"),
        with_successors=True,
        standard=("offline", WAIT_K, WAIT_K_EACH, "mma-il", ITST, GMA, GAIN),
    ),
}


def plan(recipe: str) -> list[System]:
    """All systems, then all ablations, of a recipe."""
    budget = budget_of(recipe)
    return [*(_with_seeds(system, budget.seeds) for system in _systems(budget)), *_ablations(budget)]


def recipe_named(name: str) -> str:
    """The recipe of that name, or the only one that begins with it."""
    found = [recipe for recipe in BUDGETS if name and recipe.startswith(name)]
    if len(found) != 1:
        raise UserError(f"nothing is planned for the recipe {name!r}; expected one of {', '.join(BUDGETS)}")
    return found[0]


def budget_of(recipe: str) -> Budget:
    return BUDGETS[recipe_named(recipe)]


def choose(plan: Sequence[System], names: Sequence[str] = (), group: str | None = None) -> list[System]:
    """Those of these names and of this group, in the order of the plan; all where nothing is asked for."""
    known = [system.name for system in plan]
    for name in names:
        if name not in known:
            raise UserError(f"there is no system {name!r}; expected some of {', '.join(known)}")
    if group is not None and group not in GROUPS:
        raise UserError(f"--only is {group!r}; expected {' or '.join(GROUPS)}")
    chosen = [
        system for system in plan if (not names or system.name in names) and (group is None or system.group == group)
    ]
    if not chosen:
        raise UserError(f"none of {', '.join(names)} is among the {group}; leave out --systems or --only")
    return chosen


def _systems(budget: Budget) -> list[System]:
    low, high = budget.delta
    drawn = f"attention.delta=[{low}, {high}]"
    printed = Model(GMA_PRINTED, (drawn, *PRINTED))
    return [
        _system("offline", "Offline", Model("offline", ("attention.policy=offline",))),
        _system(
            WAIT_K,
            "Wait-k",
            Model(WAIT_K, ("attention.policy=wait_k", "attention.delta=[1, inf]")),
            symbol="k",
            latencies=budget.ks,
        ),
        *(
            [_system(WAIT_K_EACH, "Wait-k, one model per k", *map(_wait_k, budget.each), symbol="k")]
            if budget.each
            else []
        ),
        _system("mu", "MU", Model("mu", under="offline"), symbol="θ", latencies=budget.thresholds),
        # as in the code of MMA: the variance loss for hard attention, the average loss for soft attention
        _system("mma-h", "MMA-H", *_monotonic("hard", "variance", "average", budget.variances), symbol="λ"),
        _system(
            "mma-il", "MMA-IL", *_monotonic("infinite_lookback", "average", "variance", budget.averages), symbol="λ"
        ),
        *(
            [_system(ITST, "ITST", Model(ITST, ("attention.policy=itst",)), symbol="θ", latencies=budget.shares)]
            if budget.shares
            else []
        ),
        _system(GMA, "GMA", Model(GMA, (drawn,)), symbol="δ", latencies=budget.deltas),
        *(
            [_system(GMA_PRINTED, "GMA as printed", printed, symbol="δ", latencies=budget.deltas)]
            if budget.with_printed
            else []
        ),
        *(
            [_system(GAIN, "Gain", Model(GAIN, ("attention.policy=gain",)), symbol="θ", latencies=budget.gains)]
            if budget.gains
            else []
        ),
    ]


def _system(name: str, title: str, *models: Model, symbol: str = "", latencies: tuple[float, ...] = ()) -> System:
    return System(name, title, "systems", models, symbol, latencies)


def _with_seeds(system: System, seeds: tuple[int, ...]) -> System:
    """With a model for every seed; those of the first one keep their names."""
    models = []
    for place, seed in enumerate(seeds):
        suffix = f"-seed-{seed}" if place else ""
        for model in system.models:
            models.append(
                replace(
                    model,
                    name=model.name + suffix,
                    overrides=(*model.overrides, f"training.seed={seed}"),
                    under=model.under and model.under + suffix,
                    seed=place,
                )
            )
    return replace(system, models=tuple(models)) if len(seeds) > 1 else system


def _wait_k(k: float) -> Model:
    return Model(f"wait-{k:g}", ("attention.policy=wait_k", f"attention.delta={k:g}"), latency=k)


def _monotonic(attention: str, loss: str, other: str, weights: tuple[float, ...]) -> list[Model]:
    short = {"hard": "mma-h", "infinite_lookback": "mma-il"}[attention]
    return [
        Model(
            f"{short}-{weight:g}",
            (
                "attention.policy=monotonic",
                f"attention.monotonic={attention}",
                f"attention.latency_{loss}={weight}",
                f"attention.latency_{other}=0.0",
            ),
            value=weight,
        )
        for weight in weights
    ]


def _ablations(budget: Budget) -> list[System]:
    rows = [
        (REFERENCE, "GMA: incremental step, Gaussian, σ = p/2, shared among heads", ()),
        ("positions-absolute", "absolute position", ("attention.positions=absolute",)),
        ("width-whole", "σ = p", ("attention.width_rule=whole",)),
        ("width-third", "σ = p/3", ("attention.width_rule=third",)),
        ("width-predicted", "predicted σ", ("attention.width_rule=predicted",)),
        ("prior-laplace", "Laplace", ("attention.prior=laplace",)),
        ("prior-linear", "linear", ("attention.prior=linear",)),
        ("prior-none", "no prior", ("attention.prior=none",)),
        ("sharing-none", "all independent", ("attention.sharing=none",)),
        ("sharing-layers", "shared among layers", ("attention.sharing=layers",)),
        ("sharing-all", "all shared", ("attention.sharing=all",)),
    ]
    return [
        System(
            name,
            title,
            "ablations",
            (Model(name, (f"attention.delta={budget.ablated}", *PRINTED, *overrides)),),
            "δ",
            (budget.ablated,),
        )
        for name, title, overrides in rows
    ]
