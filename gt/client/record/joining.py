"""Steps that belong together: where a loop has several optimizers, one pass through it becomes one program.

An optimizer's step ends the program. A loop with two optimizers then sends two programs in turn, and the second may
read what the first has computed: the pictures of a generator with everything that their gradient needs, or the
gradients of another optimizer's parameters. Each of these values becomes an output, and nothing is optimized across the
cut.

Law 1: only ends that came in the same order twice, without a read in between, are joined.
Law 2: an end is joined to what follows only if more values pass across it than across the end that remains: results,
       other than updates, that a later program of the round reads. A running sum or the hidden state of a sequence
       passes across every end, and joins none.

A joined end is a mark on its node: a step that ends there goes on. A read, or a pause of the loop, still ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gt.client.programs.pending import Value
from gt.client.programs.tree import Node, Variant

LONGEST = 4  #: Programs of a round, at most.


class EndHistory:
    """What one thread's recorder has sent, as far as it tells which ends to join."""

    __slots__ = ("_last", "_repeated", "_rounds", "_sent")

    def __init__(self) -> None:
        self._last: Node | None = None
        self._repeated = 0  #: How often the last end has come without another one in between.
        #: The last programs, and the ids of their first outputs; the last one at the end.
        self._sent: deque[tuple[Variant, int]] = deque(maxlen=LONGEST)
        #: The last ends, and how many results of the program so many before each of these programs read.
        self._rounds: deque[tuple[Node, list[int]]] = deque(maxlen=2 * LONGEST)

    def interrupted(self) -> None:
        """A program ended elsewhere than at a step."""
        self._last = None
        self._rounds.clear()

    def ends(self, end: Node, inputs: Iterable[Value]) -> None:
        """A program ends at a step, and is about to be sent."""
        self._repeated = self._repeated + 1 if end is self._last else 1
        self._last = end
        if self._repeated > LONGEST:
            self._rounds.clear()  # the usual loop: the same program each time
            return
        ids = [v.handle.id for v in inputs if v.handle is not None]
        self._rounds.append((end, [_read(ids, *sent) for sent in reversed(self._sent)]))
        self._join()

    def sent(self, variant: Variant, next_id: int) -> None:
        """A program was sent; the next one's outputs have ids from this one on."""
        self._sent.append((variant, next_id - len(variant.outputs)))

    def _join(self) -> None:
        for length in range(2, LONGEST + 1):
            last = list(self._rounds)[-2 * length :]
            ends = [end for end, _ in last]
            if len(last) == 2 * length and ends[:length] == ends[length:] and len(set(ends)) > 1:
                join_round(last[length:])
                self.interrupted()
                return


def _read(ids: list[int], variant: Variant, first: int) -> int:
    """How many of these ids are results of a program, and not updates."""
    outputs = set(range(first, first + len(variant.outputs)))
    outputs.difference_update([first + i for i, _ in variant.program.updates])
    return sum([i in outputs for i in ids])


def join_round(programs: list[tuple[Node, list[int]]]) -> None:
    """Mark the ends of a round that are no ends any more."""
    length = len(programs)
    passing = [0] * length  # across the end before each of them
    for k, (_, read) in enumerate(programs):
        for before, count in enumerate(read):
            for ends in range(min(before + 1, length)):  # a result of the program before the last passes two ends
                passing[(k - ends) % length] += count
    fewest = min(passing)
    # One program may be called twice in a round. It is joined to what follows if that is right in both places.
    stay = {programs[k - 1][0] for k in range(length) if passing[k] == fewest}
    for end, _ in programs:
        end.joins = end.joins or end not in stay
