"""A translator as an agent of SimulEval (`pip install "gma[simuleval]"`).

    simuleval --agent-class gma.simuleval_agent.GMAAgent --model runs/model --delta 2 --source test.de --target test.en
    simuleval --system-dir runs/model --source test.de --target test.en

The second form takes the agent's options from the folder's main.yaml, and none from the command line. A model that
lower-cases needs a lower-cased target file for BLEU; `gma evaluate` lower-cases the reference of such a model itself.
"""

import math
from argparse import ArgumentParser, Namespace

try:
    from simuleval.agents import TextToTextAgent
    from simuleval.agents.actions import Action, ReadAction, WriteAction
    from simuleval.agents.states import AgentStates
except ImportError as error:
    raise ImportError(
        f'gma.simuleval_agent needs SimulEval ({error}): pip install "gma[simuleval]", in an environment of its own, '
        "as it pins old versions of other packages"
    ) from error

from gma.decoding.greedy import LONGEST_ALONE
from gma.decoding.streaming import Stream, StreamingTranslator
from gma.model import directory


class StreamStates(AgentStates):
    """A sentence: its stream, and how many of its words have been pushed."""

    stream: Stream | None = None
    pushed = 0

    def reset(self) -> None:
        super().reset()
        if self.stream is not None:
            self.stream.close()
        self.stream, self.pushed = None, 0


class GMAAgent(TextToTextAgent):
    """Writes complete words as soon as they are ready, greedily."""

    def __init__(self, args: Namespace):
        self.loaded = directory.load(args.model)
        self.delta: float | None = args.delta
        if self.delta is not None and math.isnan(self.delta):
            raise ValueError("--delta is nan; expected a number of source tokens, or inf for all")
        self.translator = StreamingTranslator(self.loaded, longest=LONGEST_ALONE)
        super().__init__(args)

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        parser.add_argument("--model", required=True, help="Folder of a model, or de-en, which comes with gma.")
        parser.add_argument(
            "--delta",
            "--k",
            "--threshold",
            dest="delta",
            type=float,
            default=None,
            help="Source tokens past p (gaussian), k (wait_k), θ (gain, itst, MU); by default as configured.",
        )

    def build_states(self) -> StreamStates:
        return StreamStates()

    def to(self, device: str, *args: object, fp16: bool = False, **kwargs: object) -> None:
        if fp16:
            raise ValueError("fp16 was asked for, but positions need float32; leave --fp16 and --dtype fp16 out")
        self.loaded = self.loaded._replace(model=self.loaded.model.to(device))
        self.translator = StreamingTranslator(self.loaded, longest=LONGEST_ALONE)
        self.device = device

    def policy(self, states: StreamStates | None = None) -> Action:
        states = self.states if states is None else states
        new = " ".join(states.source[states.pushed :])
        states.pushed = len(states.source)
        if states.stream is None:
            if not new.strip() and states.source_finished:
                # the sentence has no words
                return WriteAction("", finished=True)
            states.stream = self.translator.open(self.delta)
        stream = states.stream
        emissions = stream.push(new + " ") if new else []
        # after the last word everything is written at once: otherwise SimulEval would ask for more for ever
        if states.source_finished:
            emissions += stream.finish()
        finished = states.source_finished or stream.ended
        if not emissions and not finished:
            return ReadAction()
        # all words in one action: SimulEval sends another source word between two actions
        return WriteAction(" ".join(emission.word for emission in emissions), finished=finished)
