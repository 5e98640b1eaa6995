"""Writes docs/gpu-roofline.md: what the compilers make of the main loops of the CUDA and the Triton kernels.

python -m benchmarks.gpu.roofline_page
"""

from benchmarks.gpu import roofline, sass, triton_roofline
from benchmarks.gpu.roofline import CAPABILITY, PLAN, PRIORS, ROOT, Decoding, Row

PAGE = ROOT / "docs" / "gpu-roofline.md"
PAGE_TEXT = """\
# A roofline of the GPU kernels, by their instructions

**Nothing on this page ran on a GPU.** It counts what the compilers made: the instructions of one way round each main
loop, in float16 for compute capability {capability}, gaussian prior, no dropout, aligned rows, whole tiles.
`make gpu-roofline` writes it, and tests hold the numbers.

Per logit: warp instructions × 32 / logits. Roofline: tensor cycles of the products that are needed (2 forward, 5
backward) over the cycles of the busiest part of a scheduler, if all overlaps perfectly; latencies, caches and memory
are not in it. Speeds are unknown; ratios between kernels counted in the same way mean something.

FlashAttention-2 with ALiBi, counted in the same way, has 6.3 and 4.7 issued for each product forward (D = 64 and 128),
25 and 37 for each logit backward, roofline 100%, 100%, 83%, 89%.

## CUDA

{cuda_table}

Instructions of each kind for one logit:

{cuda_classes}

Issued with another prior, as a multiple:

{priors}

Decoding, D = 64: {decoding.loads_before_use} loads of 16 bytes are on their way before the first is used, and
{per_4_kib:.0f} instructions are issued for every 4 KiB of keys and values.

## Triton

The fixed tiles. Of the backward's eight products five are needed: the scores and their gradients are made by both of
its kernels, and one product serves only to correct for a rounded context. With D = 128 their operands are read from
shared memory for 16 or 32 rows or keys of a warp at a time, as more do not fit into its registers, and that is what the
roofline shows. Registers that are spilled before a main loop and read back after it do not count.

{triton_table}

Instructions of each kind for one logit:

{triton_classes}
"""


def table(found: dict[str, Row]) -> str:
    columns = ("kernel", "issued / product", "issued / logit", "tensor cycles / logit", "roofline", "bound by",
               "registers", "blocks / SM", "spills")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * 4 + "---|" + "---:|" * 3]
    for x in found.values():
        lines.append(
            f"| {x.name} | {x.per_product:.2f} | {x.issued:.1f} | {x.tensor:.0f} | {x.roofline:.0%} | {x.busiest} | "
            f"{x.registers} | {x.blocks} | {x.spills:.0f} |"
        )
    return "\n".join(lines)


def class_table(found: dict[str, Row]) -> str:
    kinds = [kind for kind, _ in sass.CLASSES if any(x.classes.get(kind) for x in found.values())]
    lines = [f"| kernel | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
    for x in found.values():
        lines.append(f"| {x.name} | {' | '.join(f'{x.classes.get(kind, 0):.1f}' for kind in kinds)} |")
    return "\n".join(lines)


def prior_table(found: dict[str, Row]) -> str:
    lines = [f"| kernel | {' | '.join(PRIORS)} |", "|---|" + "---:|" * len(PRIORS)]
    for name in PLAN:
        times = (found[f"{name}, {prior}"].issued / found[name].issued for prior in PRIORS)
        lines.append(f"| {name} | {' | '.join(f'{x:.2f}' for x in times)} |")
    return "\n".join(lines)


def page(found: dict[str, Row], decode: Decoding, triton: dict[str, Row]) -> str:
    cuda = {name: found[name] for name in PLAN}
    return PAGE_TEXT.format(
        capability=CAPABILITY,
        cuda_table=table(cuda),
        cuda_classes=class_table(cuda),
        priors=prior_table(found),
        decoding=decode,
        per_4_kib=decode.issued * 4 / decode.kib,
        triton_table=table(triton),
        triton_classes=class_table(triton),
    )


def main() -> None:
    text = page(roofline.rows(PLAN | roofline.OTHER_PRIORS), roofline.decoding(), triton_roofline.rows())
    print(text)
    PAGE.write_text(text)
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
