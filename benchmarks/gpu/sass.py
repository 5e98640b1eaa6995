"""The machine code of compiled kernels: disassembled, split into blocks, its loops found. Needs no GPU.

nvdisasm and cuobjdump come with the CUDA toolkit and inside triton.
"""

import functools
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

# the first that matches the opcode; the order of the report
CLASSES = (
    ("tensor", r"[HIDQOB]G?MMA|UTC\w*MMA"),
    ("fp32", r"FFMA|FADD|FMUL|FFMA2|FADD2|FMUL2|FSWZADD"),
    ("min/max/select", r"FMNMX|FMNMX3|FSEL|SEL|IMNMX|VIMNMX|VIMNMX3"),
    ("mufu", r"MUFU"),
    ("convert", r"F2FP?|F2I|I2FP?|I2I|FRND|F2IP|I2IP"),
    ("half", r"HADD2|HMUL2|HFMA2|HMNMX2|HSET2|HSETP2"),
    ("ldmatrix", r"LDSM"),
    ("shared", r"LDS|STS|STSM|ATOMS"),
    ("async copy", r"LDGSTS|UTMALDG|UBLKCP|UTMAPF"),
    ("global", r"LDG|STG|RED|REDG|ATOM|ATOMG|LD|ST|UTMASTG|UTMAREDG|CCTL|CCTLL"),
    ("spill", r"LDL|STL"),
    ("shuffle", r"SHFL|REDUX|VOTE|VOTEU|MATCH|WARPREDUX"),
    ("predicate", r"U?[IF]SETP|ISETP|FSETP|DSETP|U?PLOP3|P2R|R2P|UP2UR|FCHK|FSET"),
    (
        "control",
        r"U?BRA|BRX|BRXU|JMP|JMX|BSSY|BSYNC|BREAK|BMOV|CALL|RET|EXIT|WARPSYNC|BAR|B2R|R2B|DEPBAR|LDGDEPBAR|YIELD"
        r"|ERRBAR|WARPGROUP|WARPGROUPSYNC|MEMBAR|FENCE|SYNCS|ARRIVES|NANOSLEEP|ELECT|UCGABAR\w*|ACQBULK|PREEXIT|KILL|RPCMOV",
    ),
    ("move", r"U?MOV|CS2R|CS2UR|S2R|S2UR|R2UR|UMOV32I|MOV32I|LDC|LDCU|ULDC"),
    ("integer", r".*"),
    ("padding", r""),
)
COMPILED_CLASSES = [(name, re.compile(pattern)) for name, pattern in CLASSES]
TENSOR = re.compile(r"[HIDQOB]G?MMA$|UTC\w*MMA$")
COPY = re.compile(r"LDGSTS$|UTMALDG$|UBLKCP$")


class Instruction(NamedTuple):
    address: int
    predicate: str  # "", "@P0", "@!UP3"
    opcode: str  # with its suffixes
    operands: str
    targets: tuple[int, ...]  # of a branch; of BSSY, where threads meet again
    frames: tuple[tuple[str, int], ...]  # file and line, the innermost first

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def is_empty(self) -> bool:
        """Whether it only takes its time: ptxas puts '@!PT LDS RZ, [RZ]' before asynchronous copies on 8.0."""
        return self.base == "NOP" or self.predicate in ("@!PT", "@!UPT")

    @property
    def kind(self) -> str:
        if self.is_empty:
            return "padding"
        # a move in the disguise of a multiplication
        if self.opcode.startswith("IMAD.MOV") or (self.base in ("IMAD", "HFMA2") and "RZ, RZ" in self.operands):
            return "move"
        return next(name for name, pattern in COMPILED_CLASSES if pattern.fullmatch(self.base))


class Loop(NamedTuple):
    header: int  # address of a block
    blocks: frozenset[int]


class Function(NamedTuple):
    """One kernel."""

    name: str  # mangled
    registers: int
    stack_bytes: int
    instructions: list[Instruction]


def tool(name: str) -> str:
    """nvdisasm or cuobjdump: on the PATH, or the one inside triton."""
    if found := shutil.which(name):
        return found
    spec = importlib.util.find_spec("triton")
    for folder in spec.submodule_search_locations if spec else ():
        candidate = Path(folder) / "backends/nvidia/bin" / name
        if candidate.exists():
            return str(candidate)
    raise RuntimeError(f"{name} was not found: install triton, or put the CUDA toolkit's bin folder on the PATH")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def functions(cubin: Path, wanted: str) -> list[Function]:
    """The kernels whose mangled name matches."""
    usage = run(tool("cuobjdump"), "-res-usage", str(cubin))
    resources = {}
    for name, fields in re.findall(r"Function (\S+):\s*\n\s*(.*)", usage):
        resources[name] = {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", fields)}
    found = []
    for section in re.split(r"^//-+ \.text\.", run(tool("nvdisasm"), "-c", "-gi", str(cubin)), flags=re.M)[1:]:
        name = section.split(None, 1)[0]
        if re.search(wanted, name):
            facts = resources[name]
            found.append(Function(name, facts["REG"], facts["STACK"], parse_section(section)))
    return found


FUNCTION = re.compile(r"^([\w$.]+):\s*$")
LABEL = re.compile(r"^\s*(\.L_[\w$]+):")
LINE = re.compile(r'//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;?\s*\}?\s*(?:/\*.*)?$")
TARGET = re.compile(r"\.L_[\w$]+")
JUMPS = {"BRA", "BRX", "BRXU", "JMP", "JMX", "BSSY", "CALL"}
# a call of a label that is no function's is a jump, of which nobody comes back
JUMPS = {"BRA", "BRX", "BRXU", "JMP", "JMX", "BSSY", "CALL"}


def parse_section(text: str) -> list[Instruction]:
    labels: dict[str, int] = {}
    waiting: list[str] = []
    rows: list[list] = []
    frames: list[tuple[str, int]] = []
    fresh = False  # whether the last line was about sources
    for line in text.splitlines():
        if found := LINE.search(line):
            if not fresh:
                frames = []
            fresh = True
            frame = (found.group(1), int(found.group(2)))
            if not frames or frames[-1] != frame:
                frames.append(frame)
            continue
        if found := LABEL.match(line):
            waiting.append(found.group(1))
            continue
        if found := CODE.match(line):
            fresh = False
            address = int(found.group(1), 16)
            for label in waiting:
                labels[label] = address
            waiting = []
            predicate, opcode, operands = (found.group(2) or "").strip(), found.group(3), found.group(4)
            rows.append([address, predicate, opcode, operands, (), tuple(frames)])
    for row in rows:
        if row[2].partition(".")[0] in JUMPS:
            row[4] = tuple(labels[label] for label in TARGET.findall(row[3]) if label in labels)
    return [Instruction(*row) for row in rows]


class Graph:
    """Basic blocks by the address of their first instruction, and the natural loops among them."""

    def __init__(self, instructions: list[Instruction]):
        self.instructions = instructions
        self.index = {x.address: i for i, x in enumerate(instructions)}
        self.at = {x.address: x for x in instructions}
        self._resume = self._find_resume_points()
        self.blocks = self._split()
        self.successors = {start: self._leave(start) for start in self.blocks}
        self.loops = self._find_loops()

    def _find_resume_points(self) -> dict[int, int]:
        """Where threads go on after a BSYNC: what the BSSY before it, of the same barrier, named."""
        named: dict[str, int] = {}
        points = {}
        for x in self.instructions:
            barrier = x.operands.split(",")[0].strip()
            if x.base == "BSSY" and x.targets:
                named[barrier] = x.targets[0]
            elif x.base == "BSYNC" and barrier in named:
                points[x.address] = named[barrier]
        return points

    def _targets(self, x: Instruction) -> list[int]:
        if x.base == "BSYNC":
            return [self._resume[x.address]] if x.address in self._resume else []
        # where a warp goes whose lanes have parted; here they stay together
        if x.base == "BSSY" or ".DIV" in x.opcode or x.base not in JUMPS:
            return []
        return list(x.targets)

    def _falls_through(self, x: Instruction) -> bool:
        if x.base == "BSYNC":
            return x.address not in self._resume
        # a branch may carry its condition as an operand
        always = x.predicate in ("", "@PT", "@UPT") and not re.match(r"[!~]?U[PR]|!?P\d", x.operands)
        if x.base == "CALL":
            return not (always and x.targets)
        return not (always and x.base in ("BRA", "BRX", "BRXU", "JMP", "JMX", "EXIT", "RET", "KILL"))

    def _split(self) -> dict[int, list[Instruction]]:
        leaders = {self.instructions[0].address} if self.instructions else set()
        for i, x in enumerate(self.instructions):
            targets = self._targets(x)
            leaders.update(targets)
            if (targets or not self._falls_through(x) or x.base == "EXIT") and i + 1 < len(self.instructions):
                leaders.add(self.instructions[i + 1].address)
        blocks: dict[int, list[Instruction]] = {}
        for x in self.instructions:
            if x.address in leaders:
                current = blocks[x.address] = []
            current.append(x)
        return blocks

    def _leave(self, start: int) -> list[int]:
        last = self.blocks[start][-1]
        found = self._targets(last)
        following = self.index[last.address] + 1
        if self._falls_through(last) and following < len(self.instructions):
            found.append(self.instructions[following].address)
        return list(dict.fromkeys(found))

    def _find_loops(self) -> list[Loop]:
        if not self.blocks:
            return []
        order, seen = [], set()
        entry = next(iter(self.blocks))
        stack = [(entry, iter(self.successors[entry]))]
        seen.add(entry)
        while stack:
            node, rest = stack[-1]
            following = next((x for x in rest if x not in seen), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.successors[following])))
        order.reverse()
        rank = {node: i for i, node in enumerate(order)}
        before: dict[int, list[int]] = {node: [] for node in order}
        for node in order:
            for following in self.successors[node]:
                before[following].append(node)
        # Cooper, Harvey, Kennedy: the nearest dominator of every block
        nearest = {entry: entry}
        changed = True
        while changed:
            changed = False
            for node in order[1:]:
                known = [x for x in before[node] if x in nearest]
                new = functools.reduce(lambda a, b: self._common(a, b, nearest, rank), known)
                if nearest.get(node) != new:
                    nearest[node], changed = new, True
        bodies: dict[int, set[int]] = {}
        for node in order:
            for header in self.successors[node]:
                if self._dominates(header, node, nearest):
                    body = bodies.setdefault(header, {header})
                    waiting = [node]
                    while waiting:
                        block = waiting.pop()
                        if block not in body:
                            body.add(block)
                            waiting += before[block]
        return [Loop(header, frozenset(body)) for header, body in sorted(bodies.items())]

    @staticmethod
    def _common(a: int, b: int, nearest: dict[int, int], rank: dict[int, int]) -> int:
        while a != b:
            while rank[a] > rank[b]:
                a = nearest[a]
            while rank[b] > rank[a]:
                b = nearest[b]
        return a

    @staticmethod
    def _dominates(a: int, b: int, nearest: dict[int, int]) -> bool:
        while b != a and nearest[b] != b:
            b = nearest[b]
        return a == b

    def body(self, loop: Loop) -> list[Instruction]:
        return [x for start in sorted(loop.blocks) for x in self.blocks[start]]

    def inside(self, loop: Loop) -> list[Loop]:
        """The loops directly inside."""
        smaller = [x for x in self.loops if x.blocks < loop.blocks and x.header != loop.header]
        return [x for x in smaller if not any(x.blocks < other.blocks for other in smaller)]
