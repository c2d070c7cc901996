"""Counts what a compiler made of a kernel's inner loop, from the text that a driver of Mesa gives of its code."""
import re
from dataclasses import dataclass


@dataclass
class Instruction:
    name: str
    products: int = 0  # multiply-adds, of all lanes of a wave
    shared: int = 0    # bytes that they load from shared memory
    label: str = ""    # what it branches to
    ends: bool = False  # the next instruction does not follow it
    hint: bool = False  # to the scheduler alone


@dataclass
class Loop:
    """The innermost loop with the most multiply-adds, or all code if they are in none."""
    instructions: int  # without hints
    multiplying: int   # instructions with multiply-adds
    products: int      # of a wave
    shared: int        # bytes
    whole: bool

    @property
    def share(self):
        return self.multiplying / self.instructions

    @property
    def shared_per_product(self):
        return self.shared / self.products


LABEL = re.compile(r"(BB\d+|LABEL\d+):|block\S* \d+ (L\d+) ")


def inner_loop(executable):
    """Returns the Loop of an executable of driver.Driver.compile, None if it multiplies and adds nothing."""
    name, parse = next((name, parse) for name, parse in PARSERS.items() if name in executable.texts)
    code, labels = [], {}
    for line in executable.texts[name].splitlines():
        if label := LABEL.match(line):
            labels[label[1] or label[2]] = len(code)
        else:
            parse(line, code, executable.subgroup)
    loops = list(natural_loops(code, labels))
    products = [sum(c.products for c in loop) for loop in loops]
    innermost = [(n, len(loop), loop) for n, loop in zip(products, loops) if n and not
                 any(m and len(other) < len(loop) and {*map(id, other)} <= {*map(id, loop)} for m, other in zip(products, loops))]
    body = [c for c in max(innermost, key=lambda x: x[:2], default=(0, 0, code))[2] if not c.hint]
    found = Loop(len(body), sum(c.products > 0 for c in body), sum(c.products for c in body), sum(c.shared for c in body), not innermost)
    return found if found.products else None


def natural_loops(code, labels):
    """The instructions of each loop: what reaches a branch back without passing its target. A compiler may lay out code
    behind a loop before the branch."""
    starts = sorted({0, *labels.values(), *(i + 1 for i, c in enumerate(code) if c.label or c.ends)} - {len(code)})
    block = {start: i for i, start in enumerate(starts)}
    ends = starts[1:] + [len(code)]
    before = [set() for _ in starts]  # predecessors
    back = set()
    for i, end in enumerate(ends):
        last = code[end - 1]
        if not last.ends and end < len(code):
            before[block[end]].add(i)
        if labels.get(last.label, len(code)) < len(code):
            to = block[labels[last.label]]
            before[to].add(i)
            back |= {(i, to)} if to <= i else set()
    for source, head in back:
        inside, left = {head}, [source]
        while left:
            i = left.pop()
            if i not in inside:
                inside.add(i)
                left += before[i]
        yield [c for i in sorted(inside) for c in code[starts[i]:ends[i]]]


# ---------------------------------------------------------------- RADV

AMD_PRODUCTS = {r"v_(dual_)?fm(a|ac|aak|amk)_f32": 1, r"v_pk_fm(a|ac)_f16": 2, r"v_fm(a|ac)_f16": 1, r"v_fma_mix": 1, r"v_dot2": 2}
AMD_HINTS = ("s_delay_alu", "s_clause", "s_nop", "s_waitcnt")
AMD_LOAD = re.compile(r"ds_(?:load|read)_(2addr_|2addr_stride64_|2)?(?:u8|i8|u16|i16|[bi]?(\d+))")


def amd(line, code, lanes):
    """An instruction that does two things at once counts as two, of which each may multiply."""
    for half in line.split(";")[0].split("::"):
        if not re.match(r"\s*[vsdgb]\w*_", half):
            continue
        name, *operands = half.split()
        i = Instruction(name, hint=name.startswith(AMD_HINTS))
        if name.startswith("v_wmma"):
            i.products = 16 * 16 * 16
        elif n := next((n for pattern, n in AMD_PRODUCTS.items() if re.match(pattern, name)), 0):
            i.products = n * lanes
        elif load := AMD_LOAD.match(name):
            i.shared = lanes * int(load[2] or 16) // 8 * (2 if load[1] else 1)
        elif name.startswith(("s_cbranch", "s_branch")):
            i.label, i.ends = operands[-1], name == "s_branch"
        code.append(i)


# ---------------------------------------------------------------- ANV

INTEL = re.compile(r"(?:\([^)]*\) )?([a-z][\w.]*)\((\d+)\)(.*)")
INTEL_LOAD = re.compile(r"slm MsgDesc: \( load, a\d+, d(\d+)\w*, V(\d+)")


def intel(line, code, lanes):
    if load := INTEL_LOAD.search(line):  # the second line of a send
        code[-1].shared = code[-1].lanes * int(load[1]) // 8 * int(load[2])
    if not (found := INTEL.match(line)):
        return
    name, width = found[1], int(found[2])
    i = Instruction(name, hint=name.startswith(("sync", "nop")))
    i.lanes = width
    if name.startswith("mad") and ":f" in line.lower() or name == "mad" and re.search(r"g\S+F\b|g\S+HF\b", line):
        i.products = width
    elif name.startswith("dpas"):
        depth, rows = map(int, re.match(r"dpas\.(\d+)x(\d+)", name).groups())
        i.products = width * depth * rows * 2  # 16-bit operands
    elif name == "while":
        i.label = re.search(r"JIP:\s*(LABEL\d+)", line)[1]
    code.append(i)


# ---------------------------------------------------------------- NVK

NVIDIA_PRODUCTS = {"ffma": 1, "hfma2": 2}
NVIDIA_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def nvidia(line, code, lanes):
    text = re.sub(r"^\s*@\S+", "", line.split("//")[0]).rpartition(" = ")[2].split()
    conditional = line.lstrip().startswith("@")
    if not text or not re.match(r"[a-z]", text[0]):
        return
    i = Instruction(text[0], hint=text[0] == "nop")
    i.products = lanes * NVIDIA_PRODUCTS.get(text[0].split(".")[0], 0)
    if text[0].startswith("ld.shared"):
        i.shared = lanes * NVIDIA_BYTES[re.search(r"\.[bui](\d+)", text[0])[1]]
    elif text[0] == "bra":
        i.label, i.ends = text[-1], not conditional
    elif text[0] == "exit":
        i.ends = not conditional
    code.append(i)


PARSERS = {"Assembly": amd, "GEN Assembly": intel, "NAK assembly": nvidia}
