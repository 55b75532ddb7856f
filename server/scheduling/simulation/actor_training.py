"""Training of `actor_critic` (Rafiki §5.2): an actor and a critic learn from simulated loads.

One action at a time, as in the paper: a subset for the rows that leave next. What a batch earns is the
paper's Equation 7, a(M[v]) for each row in time, where a(v) is counted on held-out rows; rows that nobody
answers in time cost what they would have brought. It is told as regret (what is missing to a right answer
for every row), which is the same but for a constant, and varies less. The actor's steps are clipped (Schulman
et al., Proximal policy optimization, 2017): they learn more from a simulated second than the paper's own.

The very pool that serves cuts the batches. Pure; the same seed gives the same network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from server.ensemble.actor import ACCURACY_UNIT, ActorNetwork, inputs_for
from server.ensemble.policies.actor_critic import Subsets
from server.ensemble.policies.base import Steady
from server.ensemble.policies.rest import Rest
from server.ensemble.selection import Choice, Ensemble, LoadView, RowEvidence, State
from server.scheduling.pool import AnswerRows, RunOn
from server.scheduling.simulation.ensembles import (
    EnsembleLoad,
    MemberOutcomes,
    PoolAction,
    simulate_ensemble,
)
from server.scheduling.simulation.perceptron import Adam, Perceptron

__all__ = ["Lesson", "train_actor"]

Floats = NDArray[np.float64]

_HIDDEN = (48, 48)
_GAMMA, _LAMBDA = 0.75, 0.85  # a goal later
_CLIP = 0.2
_EPOCHS, _MINIBATCH = 6, 256
_ACTOR_RATE, _CRITIC_RATE = 2e-3, 4e-3
_ENTROPY, _LAST_ENTROPY = 0.02, 0.001


@dataclass(frozen=True, slots=True)
class Lesson:
    """One simulated load. Every lesson of a network is of the same number of members and devices."""

    ensemble: Ensemble
    arrivals_s: Sequence[float]
    slo_s: float
    max_batch: int = 64
    batch_sizes: tuple[int, ...] = ()


def train_actor(
    lesson: Callable[[Random], Lesson],
    *,
    updates: int = 60,
    lessons: int = 6,
    seed: int = 0,
    heard: Callable[[int, float], None] = lambda update, regret: None,
) -> ActorNetwork:
    """A network that has learned from so many updates, of so many lessons each, drawn by `lesson`.

    heard: is told the number of each update, and the regret a row before it.
    """
    draw = Random(f"{seed} lessons")
    first = Subsets(lesson(Random(f"{seed} size")).ensemble)
    learner = _Learner(first, seed)
    for update in range(updates):
        done = update / max(1, updates - 1)
        runs = [learner.attend(lesson(draw), draw.random()) for _ in range(lessons)]
        heard(update, sum(run.regret for run in runs) / max(1, sum(run.rows for run in runs)))
        learner.learn([run for run in runs if run.steps], 1 - 0.9 * done, done)
    return learner.network()


@dataclass(slots=True)
class _Step:
    """A subset that was drawn, and rows left by it."""

    at_s: float
    inputs: Floats
    accuracies: Floats
    action: int
    log_share: float
    regret: float = 0.0


@dataclass(slots=True)
class _Run:
    """One lesson: its steps, in order. unit: regret of one row, in the units of the returns."""

    slo_s: float
    unit: float
    rows: int
    steps: list[_Step] = field(default_factory=list)
    regret: float = 0.0


class _Explorer(Steady):
    """Asks one subset of all rows that have not left yet, drawn anew whenever a batch may be cut.

    A row that has left is for the subset that it left by; rows are told apart by their draws.
    """

    name = "explorer"

    def __init__(self, ensemble: Ensemble, known: Subsets, learner: _Learner, seed: float) -> None:
        super().__init__(ensemble)
        self._known, self._learner = known, learner
        self._random = np.random.default_rng(int(seed * (1 << 53)))
        self._rest = Rest(len(ensemble.members))
        self._taken: dict[float, int] = {}
        self._at_load: tuple[float, float, float] | None = None
        self.step: _Step | None = None

    def init(self) -> State:
        """All members."""
        return {"subset": self._known.subsets[-1]}

    def steer(self, state: State, load: LoadView) -> State:
        """Draw a subset; where nothing happened since the last time, keep it."""
        key = (load.now_s, float(load.waiting.sum()), float(sum(load.busy_s)))
        if key == self._at_load:
            return state
        self._at_load = key
        inputs = self._known.inputs(load)
        shares = self._learner.shares(inputs, self._known.accuracies)
        action = min(int(np.searchsorted(np.cumsum(shares), self._random.random())), len(shares) - 1)
        log_share = float(np.log(max(shares[action], 1e-12)))
        self.step = _Step(load.now_s, inputs, self._known.accuracies, action, log_share)
        subset = self._known.subsets[action]
        return state if subset == state["subset"] else {"subset": subset}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """What is missing of the row's subset."""
        if not row.subset | row.under_way:
            self._taken[row.draw] = state["subset"]
        return self._rest.of(self._taken[row.draw], row)


class _Watch:
    """Who took part in which step, and what came of it."""

    def __init__(self, run: _Run, explorer: _Explorer, accuracy_of: dict[int, float]) -> None:
        self._run, self._explorer, self._accuracy_of = run, explorer, accuracy_of
        self._left_by: dict[int, _Step] = {}

    def __call__(self, now_s: float, action: PoolAction) -> None:
        """The pool does this now."""
        steps = self._run.steps
        if isinstance(action, RunOn):
            step = self._explorer.step
            fresh = [part.request_id for part in action.slices if part.request_id not in self._left_by]
            if fresh and step is not None:
                if not steps or steps[-1] is not step:
                    steps.append(step)
                self._left_by.update(dict.fromkeys(fresh, step))
        elif isinstance(action, AnswerRows):
            for part, subset in action.parts:
                self._missed(self._left_by[part.request_id], 1 - self._accuracy_of[subset])
        elif steps:
            for run in action.runs:
                self._missed(self._left_by.get(run.request_id, steps[-1]), 1.0)

    def _missed(self, step: _Step, regret: float) -> None:
        self._run.regret += regret
        step.regret += regret * self._run.unit


class _Learner:
    """The actor, the critic, and how they learn."""

    def __init__(self, known: Subsets, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._size = known.size
        wide = inputs_for(*known.size)
        self._actor = Perceptron(self._random, (wide, *_HIDDEN, len(known.subsets)), last=0.01)
        self._critic = Perceptron(self._random, (wide, *_HIDDEN, 1))
        self._skill = np.array(1.0)
        self._actor_steps = Adam([*self._actor.arrays, self._skill])
        self._critic_steps = Adam(self._critic.arrays)
        self._network = self.network()

    def network(self) -> ActorNetwork:
        """What has been learned until now."""
        pairs = zip(self._actor.weights, self._actor.biases, strict=True)
        layers = tuple((weights.copy(), biases.copy()) for weights, biases in pairs)
        return ActorNetwork(*self._size, layers, float(self._skill))

    def shares(self, inputs: Floats, accuracies: Floats) -> Floats:
        """How often which subset is drawn."""
        return self._network.shares(inputs, accuracies)

    def attend(self, lesson: Lesson, seed: float) -> _Run:
        """Run a lesson by what has been learned until now."""
        self._network = self.network()
        ensemble = lesson.ensemble
        known = Subsets(ensemble)
        lasts_s = max(lesson.arrivals_s, default=0.0) - min(lesson.arrivals_s, default=0.0)
        run = _Run(
            lesson.slo_s, lasts_s / lesson.slo_s / max(1, len(lesson.arrivals_s)), len(lesson.arrivals_s)
        )
        explorer = _Explorer(ensemble, known, self, seed)
        accuracy_of = dict(zip(known.subsets, known.accuracies.tolist(), strict=True))
        subsets = known.subsets
        load = EnsembleLoad(
            arrivals_s=lesson.arrivals_s,
            slo_s=lesson.slo_s,
            latencies=[_latency(member.fixed_s, member.per_row_s) for member in ensemble.members],
            # Whether a row is right is reckoned by the accuracy of who answers it.
            outcomes=MemberOutcomes(dict.fromkeys(subsets, (0.0,)), dict.fromkeys(subsets, (False,))),
            max_batch=lesson.max_batch,
            batch_sizes=lesson.batch_sizes,
            seed=int(seed * (1 << 30)),
        )
        simulate_ensemble(load, ensemble, explorer, watch=_Watch(run, explorer, accuracy_of))
        return run

    def learn(self, runs: Sequence[_Run], pace: float, done: float) -> None:
        """Some epochs of clipped steps on what these runs have seen."""
        steps = [step for run in runs for step in run.steps]
        if not steps:
            return
        inputs = np.stack([step.inputs for step in steps])
        accuracies = np.stack([step.accuracies for step in steps])
        actions = np.array([step.action for step in steps])
        before = np.array([step.log_share for step in steps])
        values = self._critic.values(inputs)[-1][:, 0]
        ahead, returns = _advantages(runs, values)
        ahead = (ahead - ahead.mean()) / (ahead.std() + 1e-8)
        entropy = _ENTROPY + done * (_LAST_ENTROPY - _ENTROPY)
        for _ in range(_EPOCHS):
            order = self._random.permutation(len(steps))
            for begin in range(0, len(steps), _MINIBATCH):
                at = order[begin : begin + _MINIBATCH]
                self._criticise(inputs[at], returns[at], _CRITIC_RATE * pace)
                self._act(inputs[at], accuracies[at], actions[at], before[at], ahead[at], entropy, pace)

    def _criticise(self, inputs: Floats, returns: Floats, rate: float) -> None:
        values = self._critic.values(inputs)
        slopes = (values[-1] - returns[:, None]) / len(returns)
        self._critic_steps.descend(self._critic.gradients(values, slopes), rate)

    def _act(
        self,
        inputs: Floats,
        accuracies: Floats,
        actions: NDArray[np.int64],
        before: Floats,
        ahead: Floats,
        entropy: float,
        pace: float,
    ) -> None:
        values = self._actor.values(inputs)
        logits = values[-1] + self._skill * ACCURACY_UNIT * accuracies
        logits = logits - logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        shares = np.exp(logs)
        rows = np.arange(len(actions))
        ratio = np.exp(logs[rows, actions] - before)
        clipped = np.where(ahead > 0, ratio > 1 + _CLIP, ratio < 1 - _CLIP)
        pull = np.where(clipped, 0.0, ahead * ratio)[:, None]
        taken = np.zeros_like(shares)
        taken[rows, actions] = 1.0
        spread = -(shares * logs).sum(axis=1, keepdims=True)
        slopes = (-pull * (taken - shares) + entropy * shares * (logs + spread)) / len(actions)
        gradients = self._actor.gradients(values, slopes)
        of_skill = np.array((slopes * ACCURACY_UNIT * accuracies).sum())
        self._actor_steps.descend([*gradients, of_skill], _ACTOR_RATE * pace)


def _advantages(runs: Sequence[_Run], values: Floats) -> tuple[Floats, Floats]:
    """Of each step: how much better it went than the critic thought, and what it returned.

    Generalised advantages (Schulman et al. 2016); a step is as long as the time to the next one.
    """
    ahead = np.zeros(len(values))
    begin = 0
    for run in runs:
        end = begin + len(run.steps)
        carried = 0.0
        for at in range(end - 1, begin - 1, -1):
            step = run.steps[at - begin]
            if at == end - 1:
                continue  # nothing is known of what followed
            goals = (run.steps[at - begin + 1].at_s - step.at_s) / run.slo_s
            surprise = -step.regret + _GAMMA**goals * values[at + 1] - values[at]
            carried = ahead[at] = surprise + (_GAMMA * _LAMBDA) ** goals * carried
        begin = end
    return ahead, ahead + values


def _latency(fixed_s: float, per_row_s: float) -> Callable[[int], float]:
    return lambda rows: fixed_s + rows * per_row_s
