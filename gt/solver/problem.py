"""A program as a graph of choices, and the price of an assignment.

A `ChoiceNode` is one choice: an instruction together with its followers, or an input. Its options say in which layouts
it wants its operands and gives its values. A conversion brings a value from the layout in which it is made to one
that a reader wants.

Law 1: a conversion is paid once for each (value, wanted layout, phase), however many instructions read the result.
Law 2: an output that replaces an input has to come back to the layout in which the input is stored, at every step.
Law 3: members of a class have one choice. What it costs them is what it would cost if each chose that by itself.
Law 4: the price of an assignment is the sum of its options and conversions. Nothing overlaps in it except the
       reductions of gradients (`hidden` in search.py). What is emitted never takes longer: copies are shared further,
       and small reductions travel together.

Followers: an instruction with one tensor operand runs in the way that its operand's layout asks for, so it belongs to
the node that makes the operand. In between, what is partial is reduced, and what is whole is sliced. In a large problem
all such instructions follow, else only those that lose nothing by it (`loses_nothing`). A value that is made of numbers
alone is made wherever it is read, in the layout that is wanted there; it needs no choice.

Phases: with two of them, copies that take more memory than the value itself are dropped between the forward and the
backward pass, and made again (`Chosen.drops`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gt.chosen import Chosen
from gt.dispatcher.planner.redistribute import cheapest
from gt.dispatcher.planner.ways import Use, bound_of, uses_of
from gt.errors import ArgumentError
from gt.layout import Layout, Mesh, layout, parse
from gt.ops.check import Checked
from gt.ops.record import TABLE
from gt.program import Spec
from gt.solver import facts
from gt.solver.choices import ChoiceNode, ChosenValue, Edge, NodeOption, Sharing
from gt.solver.conversions import Conversions
from gt.solver.followers import Joint, follow, loses_nothing
from gt.solver.hardware import Hardware
from gt.solver.options import Cost, Forms, Option, conversion, making_cost, nbytes_at, options_of, splits_of
from gt.solver.pricing import work_of
from gt.solver.regions import Classes

#: A problem of at most this size (`Problem.size_with`) is small.
SMALL = 60_000
#: A problem that is not small, and whose instructions have more options than this, is large: see "Followers" above.
FEW_OPTIONS = 4000


class Problem:
    """See the file's header. `pins`: layouts of inputs, by their numbers."""

    def __init__(
        self, checked: Checked, mesh: Mesh, hardware: Hardware, classes: Classes, pins: Mapping[int, Layout],
        phases: int = 1, merge_followers: bool = True,
    ) -> None:  # fmt: skip
        self.checked, self.mesh, self.hardware, self.classes = checked, mesh, hardware, classes
        self.pins, self.phases = pins, phases
        self.program = checked.program
        self.nodes: list[ChoiceNode] = []
        self.values: list[ChosenValue] = []
        self.edges: list[Edge] = []
        self.sharings: list[Sharing] = []
        self.tables: dict[Spec, Conversions] = {}
        self._spans: dict[int, dict[int, tuple[int, int]]] = {}
        self.number_of = facts.numbers(checked)  #: of the first result of each instruction
        self._is_deferred = facts.deferred(checked)
        self.value_of: dict[tuple[int, int], int] = {}  #: (class, result) -> value; inputs are (~class, 0)
        self.uses = uses_of(checked)  #: of ops, by the instructions
        self._forms = facts.forms(checked, self.uses)
        self.boundary, self.update_start = facts.passes(checked, self.uses)
        self._build_nodes(merge_followers)
        self._build_edges()
        self._price_conversions()
        self.fixed_us = self._fixed_us()  #: what is paid whatever is chosen

    # -- classes -------------------------------------------------------------------------------

    def key_of(self, number: int) -> tuple[int, int]:
        """The class of a value and which result it is; of an input ~class and 0."""
        n = len(self.program.inputs)
        if number < n:
            return ~self.classes.inputs[number], 0
        i = self.maker[number - n]
        return self.classes.instructions[i], number - self.number_of[i]

    def options_at(self, i: int) -> list[Option]:
        """The options of an instruction."""
        use = self.uses[i]
        if use.op.pins:
            want = parse(use.attrs.value["layout"], self.mesh) if use.attrs.value["layout"] else layout(self.mesh)
            return [Option(Chosen(), (want,), (want,), Cost())]
        bound = bound_of(use)
        forms: dict[str, dict[tuple[int, ...], None]] = {}
        start = self.number_of[i]
        numbers = [*self.program.code[i].args, *range(start, start + len(use.results))]
        for a, dims in zip(numbers, [*bound.inputs, *bound.outputs], strict=True):
            for d, form in self._forms.get(a, {}).keys() if a >= 0 else ():
                if d < len(dims) and len(dims[d]) == 1:
                    forms.setdefault(dims[d][0], {})[form] = None
        every: Forms = tuple([(f, form) for f, mine in forms.items() for form in mine])
        return list(options_of(use, self.mesh, self.hardware, every))

    # -- nodes ---------------------------------------------------------------------------------

    def _build_nodes(self, merge: bool) -> None:
        program, n = self.program, len(self.program.inputs)
        self.maker = [i for i, ins in enumerate(program.code) for _ in range(ins.results)]
        members: dict[int, list[int]] = {}
        for i, c in enumerate(self.classes.instructions):
            members.setdefault(c, []).append(i)
        inputs: dict[int, list[int]] = {}
        for j, c in enumerate(self.classes.inputs):
            inputs.setdefault(c, []).append(j)
        self.members, self.input_members = members, inputs
        node_of: dict[int, int] = {}  # class -> node
        joints: list[list[Joint]] = []
        for c, mine in inputs.items():
            pinned = {self.pins[j] for j in mine if j in self.pins}
            if len(pinned) > 1:
                raise ArgumentError(
                    f"pins: inputs {mine} are alike but pinned differently: {sorted(map(repr, pinned))}"
                )
            forms: dict[int, list[tuple[int, ...]]] = {}
            for d, form in self._forms.get(c, {}):
                forms.setdefault(d, []).append(form)
            options = list(pinned) or splits_of(self.checked.specs[c], self.mesh, forms)
            node_of[~c] = len(self.nodes)
            self.nodes.append(ChoiceNode([], c, len(mine)))
            joints.append([Joint(Cost(), (), {c: one}, ()) for one in options])
        read_by = self._readers()
        options_of_class = {c: self.options_at(c) for c in members if not self._is_deferred[c]}
        self._counts = {c: len(options) for c, options in options_of_class.items()}
        is_large = sum(self._counts.values()) > FEW_OPTIONS and self.size_with(self.classes) > SMALL
        for c, options_here in options_of_class.items():
            mine = members[c]
            leader = self._leader(c, read_by, node_of) if merge else None
            if leader is not None and (
                is_large or (self._is_only_reader(c, read_by) and loses_nothing(self.uses[c], options_here))
            ):
                operand = self.first_of(self.key_of(next(a for a in program.code[c].args if a >= 0)))
                joined = follow(
                    joints[leader], self.uses[c], operand, self.number_of[c], options_here, self.hardware, is_large
                )
                if joined is not None:
                    joints[leader] = joined
                    self.nodes[leader].instructions.append(c)
                    node_of[c] = leader
                    continue
            node_of[c] = len(self.nodes)
            self.nodes.append(ChoiceNode([c], -1, len(mine)))
            start = self.number_of[c]
            joints.append([
                Joint(o.cost, tuple([w for w in o.wants if w is not None]),
                       {start + r: one for r, one in enumerate(o.gives)}, (o.chosen,), o.extra_nbytes)
                for o in options_here
            ])  # fmt: skip
        self._node_of = node_of
        outputs = set(program.outputs)
        ending = outputs - {program.outputs[o] for o, _ in program.updates}
        for k, (node, joint_options) in enumerate(zip(self.nodes, joints, strict=True)):
            inside = set(node.instructions)
            if node.instructions and node.input < 0:
                leader_code = program.code[node.instructions[0]]
                node.operands = [(node.instructions[0], p) for p, a in enumerate(leader_code.args) if a >= 0]
            numbers = list(joint_options[0].gives)
            kept = []
            for number in numbers:
                key = self.key_of(number)
                readers = read_by.get(key, set())
                outs = any(v in outputs for v in self._instances(key))
                if any(r not in inside for r in readers) or outs or number < n:
                    kept.append(number)
            for number in kept:
                self.value_of[self.key_of(number)] = len(self.values)
                node.values.append(len(self.values))
                op = None if number < n else TABLE[program.code[self.maker[number - n]].op]
                self.values.append(ChosenValue(self.checked.specs[number], k, is_view=op is not None and op.aliases))
            best: dict[tuple[object, ...], NodeOption] = {}
            for joint in joint_options:
                gives = tuple([joint.gives[number] for number in kept])
                cost = joint.cost.plus(self._output_cost(kept, gives, ending))
                found = best.get((joint.wants, gives))
                if found is None or cost.time_us < found.cost.time_us:
                    best[joint.wants, gives] = NodeOption(cost, joint.wants, gives, joint.chosen, joint.extra_nbytes)
            node.options = sorted(best.values(), key=lambda option: option.cost.time_us)
            node.time_us = np.array([option.cost.time_us for option in node.options])

    def size_with(self, classes: Classes) -> int:
        """About how many variables the integer program has with these classes, or finer ones: pairs of options."""
        return sum([
            self._counts.get(self.classes.instructions[c], 0) ** 2 for c in dict.fromkeys(classes.instructions)
        ])  # fmt: skip

    def _output_cost(self, kept: Sequence[int], gives: Sequence[Layout], ending: set[int]) -> Cost:
        """An output that replaces nothing (`ending`) is reduced where it is partial."""
        cost = Cost()
        for number, one in zip(kept, gives, strict=True):
            if one.partial:
                instances = self._instances(self.key_of(number))
                ends = sum(v in ending for v in instances)
                if ends:
                    whole = layout(one.mesh, one.dims)
                    each = conversion(one, whole, self.checked.specs[number], self.hardware)
                    cost = cost.plus(Cost(*[x * ends / len(instances) for x in each]))
        return cost

    def first_of(self, key: tuple[int, int]) -> int:
        """The number of the first value of a class."""
        c, r = key
        return ~c if c < 0 else self.number_of[c] + r

    def _instances(self, key: tuple[int, int]) -> list[int]:
        """The numbers of all values of a class."""
        c, r = key
        if c < 0:
            return self.input_members[~c]
        return [self.number_of[i] + r for i in self.members[c]]

    def _readers(self) -> dict[tuple[int, int], set[int]]:
        """Of each class of values: the classes of instructions that read it."""
        found: dict[tuple[int, int], set[int]] = {}
        for i, ins in enumerate(self.program.code):
            for a in ins.args:
                if a >= 0:
                    found.setdefault(self.key_of(a), set()).add(self.classes.instructions[i])
        return found

    def _leader(self, c: int, read_by: Mapping[tuple[int, int], set[int]], node_of: Mapping[int, int]) -> int | None:
        """The node that an instruction follows, if it does."""
        use = self.uses[c]
        positions = [k for k, s in enumerate(use.specs) if not s.weak]
        if len(positions) != 1 or len(use.results) != 1 or use.op.pins or use.op.indices is not None:
            return None
        if work_of(use)[0] > 64 * max(use.specs[positions[0]].size, use.results[0].size):
            return None
        instances = [self.program.code[i].args[positions[0]] for i in self.members[c]]
        keys = {self.key_of(a) for a in instances}
        if len(keys) != 1 or len(set(instances)) != len(instances):
            return None
        key = keys.pop()
        if len(self._instances(key)) != len(instances) or key[0] not in node_of:
            return None
        if use.op.aliases and len(read_by.get(key, ())) > 1:
            return None  # a view of a copy that another reader wants is free: it must not ask for a copy of its own
        return node_of[key[0]]

    def _is_only_reader(self, c: int, read_by: Mapping[tuple[int, int], set[int]]) -> bool:
        """Whether nothing else needs the operand of a follower, or says in which layout it is."""
        key = next(self.key_of(a) for a in self.program.code[c].args if a >= 0)
        instances = set(self._instances(key))
        replaced = {j for _, j in self.program.updates}
        return (
            read_by[key] == {c} and not instances & set(self.program.outputs)
            and not (key[0] < 0 and (instances & replaced or instances & set(self.pins)))
        )  # fmt: skip

    # -- edges ---------------------------------------------------------------------------------

    def _build_edges(self) -> None:
        program = self.program
        found: dict[tuple[int, int, int], set[int]] = {}  # (value, node, operand) -> instances
        first: dict[tuple[int, int, int], int] = {}  # ... -> the first instruction that reads
        for k, node in enumerate(self.nodes):
            for position, (leader, p) in enumerate(node.operands):
                for i in self.members[leader]:
                    a = program.code[i].args[p]
                    at = (self._value(a), k, position)
                    found.setdefault(at, set()).add(a)
                    first.setdefault(at, leader)
        for (value, node_index, operand), instances in found.items():
            reader = first[value, node_index, operand]
            phase = int(self.phases > 1 and reader >= self.boundary)
            self.edges.append(Edge(value, node_index, operand, phase, frozenset(instances)))
        loops: dict[tuple[int, int], set[int]] = {}
        specs = self.checked.specs
        for o, j in program.updates:
            if specs[program.outputs[o]].shape == specs[j].shape:
                a = program.outputs[o]
                loops.setdefault((self._value(a), self._node_of[~self.classes.inputs[j]]), set()).add(a)
        for (value, node_index), instances in loops.items():
            self.edges.append(Edge(value, node_index, -1, self.phases - 1, frozenset(instances)))
        self._share(first)

    def _value(self, number: int) -> int:
        """The chosen value of a number; one that is made of numbers alone is entered here."""
        key = self.key_of(number)
        found = self.value_of.get(key)
        if found is None:
            found = self.value_of[key] = len(self.values)
            self.values.append(ChosenValue(self.checked.specs[number], -1, self._recipe(number)))
        return found

    def _recipe(self, number: int) -> tuple[Use, ...]:
        """The instructions that make a value of numbers alone."""
        n = len(self.program.inputs)
        todo, found = [self.maker[number - n]], set[int]()
        while todo:
            i = todo.pop()
            found.add(i)
            todo += [self.maker[a - n] for a in self.program.code[i].args if a >= 0]
        return tuple([self.uses[i] for i in sorted(found)])

    def _fixed_us(self) -> float:
        """What outputs of numbers alone cost. They are made whole, everywhere."""
        n = len(self.program.inputs)
        ends = [v for v in self.program.outputs if v >= n and self._is_deferred[self.maker[v - n]]]
        return sum(making_cost(self._recipe(v), layout(self.mesh), self.hardware).time_us for v in ends)

    def _share(self, first: Mapping[tuple[int, int, int], int]) -> None:
        groups: dict[tuple[int, int], list[int]] = {}
        for e, edge in enumerate(self.edges):
            groups.setdefault((edge.value, edge.phase), []).append(e)
        for (value, phase), mine in groups.items():
            readers: dict[int, list[int]] = {}  # of each value of the class: its edges
            for e in mine:
                for number in self.edges[e].instances:
                    readers.setdefault(number, []).append(e)
            alike: dict[tuple[int, ...], list[int]] = {}
            for number, theirs in sorted(readers.items()):
                alike.setdefault(tuple(theirs), []).append(number)
            made = self.values[value].node
            is_gradient = made >= 0 and self.nodes[made].input < 0
            is_gradient = is_gradient and self.nodes[made].instructions[0] < self.update_start
            for members, numbers in alike.items():
                late = is_gradient and all(
                    each.operand < 0 or first[value, each.node, each.operand] >= self.update_start
                    for each in [self.edges[e] for e in members]
                )
                self.sharings.append(Sharing(value, phase, frozenset(numbers), list(members), late))

    def _price_conversions(self) -> None:
        for v, value in enumerate(self.values):
            if value.node >= 0:
                node = self.nodes[value.node]
                slot = node.values.index(v)
                places: dict[Layout, int] = {}
                value.layout_of = np.array([places.setdefault(o.gives[slot], len(places)) for o in node.options])
                value.layouts = list(places)
        targets: list[dict[Layout, int]] = [{} for _ in self.values]
        for edge in self.edges:
            node, mine = self.nodes[edge.node], targets[edge.value]
            if edge.operand >= 0:
                wanted = [option.wants[edge.operand] for option in node.options]
            else:
                wanted = [option.gives[0] for option in node.options]
            edge.target_of = np.array([mine.setdefault(one, len(mine)) for one in wanted])
        for value, mine in zip(self.values, targets, strict=True):
            value.targets = list(mine)
            if value.recipe:
                row = [making_cost(value.recipe, one, self.hardware).time_us for one in value.targets]
                value.price_us = np.array([row])
                continue
            self.tables.setdefault(value.spec, Conversions(value.spec, self.hardware)).add(
                (*value.layouts, *value.targets)
            )
        for table in self.tables.values():
            table.find()
        for value in self.values:
            if not value.recipe:
                value.price_us = self.tables[value.spec].prices(value.layouts, value.targets)
        for sharing in self.sharings:
            sharing.edges.sort(key=lambda e: (self.edges[e].node, self.edges[e].operand))

    # -- the price of an assignment ------------------------------------------------------------

    def layout_index(self, value: int, assigned: Sequence[int]) -> int:
        """In which of its layouts a value is made."""
        made = self.values[value]
        return int(made.layout_of[assigned[made.node]]) if made.node >= 0 else 0

    def conversions(self, sharing: Sharing, assigned: Sequence[int]) -> tuple[int, set[int]]:
        """The layout in which a value is made, and the targets that its readers want."""
        wanted = {int(self.edges[e].target_of[assigned[self.edges[e].node]]) for e in sharing.edges}
        return self.layout_index(sharing.value, assigned), wanted

    def price(self, assigned: Sequence[int], overlap: float | None = None) -> float:
        """The price of an assignment: an option of each node. In microseconds. `overlap`: as if the hardware had this
        one."""
        hidden = behind = 0.0
        total = self.fixed_us
        for node, k in zip(self.nodes, assigned, strict=True):
            total += node.count * float(node.time_us[k])
            if node.instructions and self.boundary <= node.instructions[0] < self.update_start:
                behind += node.count * node.options[k].cost.compute_us
        for sharing in self.sharings:
            source, wanted = self.conversions(sharing, assigned)
            prices = self.values[sharing.value].price_us
            mine = sharing.count * float(sum(prices[source, t] for t in wanted))
            total += mine
            hidden += mine if sharing.is_reduced_late else 0.0
        return total - min(hidden, (self.hardware.overlap if overlap is None else overlap) * behind)

    def spans(self, sharing: int) -> dict[int, tuple[int, int]]:
        """Of each value that readers share: the first and the last instruction among them that reads it."""
        found = self._spans.get(sharing)
        if found is None:
            found = self._spans[sharing] = {}
            for e in self.sharings[sharing].edges:
                edge = self.edges[e]
                if edge.operand < 0:
                    continue
                leader, position = self.nodes[edge.node].operands[edge.operand]
                for i in self.members[leader]:
                    a = self.program.code[i].args[position]
                    if a in self.sharings[sharing].instances:
                        first, last = found.get(a, (i, i))
                        found[a] = min(first, i), max(last, i)
        return found

    def chosen(self, assigned: Sequence[int], with_paths: bool = True) -> dict[int, Chosen]:
        """What `plan_program` is to follow. Without paths it decides by itself how operands get to their layouts."""
        found: dict[int, Chosen] = {}
        for node, k in zip(self.nodes, assigned, strict=True):
            for c, chosen in zip(node.instructions, node.options[k].chosen, strict=True):
                if chosen is not None and not TABLE[self.program.code[c].op].pins:
                    found.update(dict.fromkeys(self.members[c], chosen))
        for edge in self.edges if with_paths else ():
            value = self.values[edge.value]
            if edge.operand >= 0 and value.node >= 0:
                self._add_path(found, edge, assigned)
        if self.phases > 1:
            at = next((i for i in range(self.boundary, len(self.program.code)) if i in found), None)
            if at is not None:
                found[at] = msgspec.structs.replace(found[at], drops=True)
        return found

    def _add_path(self, found: dict[int, Chosen], edge: Edge, assigned: Sequence[int]) -> None:
        """The layouts that an operand passes through, where the planner would take another path."""
        value = self.values[edge.value]
        source = value.layouts[self.layout_index(edge.value, assigned)]
        target = value.targets[int(edge.target_of[assigned[edge.node]])]
        between = self.tables[value.spec].between(source, target) if source is not target else []
        if between == [step.to for step in cheapest((source,), target, value.spec).steps][:-1]:
            return
        leader, position = self.nodes[edge.node].operands[edge.operand]
        for i in self.members[leader]:
            if self.program.code[i].args[position] in edge.instances and i in found:
                via = (*found[i].via, (position, tuple([repr(one) for one in (*between, target)])))
                found[i] = msgspec.structs.replace(found[i], via=via)

    def inputs(self, assigned: Sequence[int]) -> list[Layout]:
        """The layouts of the program's inputs."""
        by_class = {
            node.input: node.options[k].gives[0]
            for node, k in zip(self.nodes, assigned, strict=True)
            if node.input >= 0
        }
        return [by_class[c] for c in self.classes.inputs]

    def nbytes_of(self, value: int) -> list[int]:
        """The memory of a value in each of its layouts."""
        one = self.values[value]
        return [0 if one.is_view else nbytes_at(each, one.spec) for each in one.layouts]
