"""What the pages on operation quote: monitoring, serving and robustness."""

import re
from statistics import fmean

from scipy.stats import linregress

from benchmarks.quotes import Quote, ends, every, figures, lines, number, printed, row, rows, words

VIT, DEIT = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "deit_tiny_patch16_224.fb_in1k"


def monitoring() -> list[Quote]:
    bundled, vit, deit = (each for each in rows("unseen.md", "| test |") if each["test"] == "features and entropy")
    groups = {each["group"].split()[0]: number(each["64, 0.25"]) for each in rows("monitor.md", "## Narrow content")}
    noticed = [each[level] for each in rows("monitor.md", "noticed, batches of 1 ") for level in "12345"]
    episodes = rows("monitor.md", "| episodes |")
    weak, strong, dark, own, plain, own_strong, plain_strong = printed(
        "monitor.md",
        r"gamma ([\d.]+) and ([\d.]+), ViT-Tiny, (\d+) images each: Align has ([\d.]+) % instead of ([\d.]+) %, and "
        r"([\d.]+) % instead of ([\d.]+) %",
    )
    references = (
        ("monitor.md", r"reference of (\d+) images"),
        ("guard-vit-tiny.md", r"Reference of (\d+) clean"),
        ("guard.md", r"Reference of (\d+) clean"),
        ("monitor.md", r"(\d+) of them calibrated on"),
    )
    return [
        Quote(
            "References are of {:.0f} images ({:.0f} or {:.0f} for the guard, {:.0f} for the episodes)",
            *(printed(*each)[0] for each in references),
        ),
        Quote("a ViT-Tiny took {:.0f} s of processor time", *printed("monitor.md", r"ways\): (\d+) s of processor")),
        Quote(
            "Align lost {:.1f} and {:.1f} points at gamma {} and {} ({:.0f} images each",
            *(plain - own, plain_strong - own_strong, weak, strong, dark),
        ),
        Quote(
            "| {}, for ViT-Tiny and DeiT-Tiny | `unseen.md` |",
            sum(int(each[head]) for each in (vit, deit) for head in each if head.startswith("alarms")),
        ),
        Quote(
            "64 each: none in {} of {} groups, fish {:.0f} %. Bundled model: in {} of {} classes",
            *([*groups.values()].count(0), len(groups), groups["fish"] / 10),
            *re.findall(r"\d+", bundled["narrow groups with an alarm"]),
        ),
        Quote(
            "| {:.0f} to {:.0f}; elastic transform 5: {} in batches of 16 |",
            *ends(number(text) for text in noticed if not text.startswith(">")),
            vit["images until elastic transform 5 is noticed"],
        ),
        Quote(
            "| {} episodes of 64 corrupted images at severity 3 | {} noticed; "
            "{} with more than one alarm or all-clear |",
            *(sum(int(each[head]) for each in episodes) for head in [*episodes[0]][1:4]),
        ),
        Quote(
            "first, 16 images | {:.0f} % at severity 1, {:.0f} % at 5 |",
            *(number(row("monitor.md", "All severities", "16", level)["right"]) for level in "15"),
        ),
        Quote("quality and faults, 224 px | {} ms an image |", *printed("monitor.md", r"faults take ([\d.]+) ms")),
        *_expected_accuracy(),
        *_guard(),
    ]


def _expected_accuracy() -> list[Quote]:
    record, heads = "expected-accuracy.md", "| kind seen |"
    seen, unseen = (
        [row(record, heads, model, "adapted", "yes", kind) for model in (VIT, DEIT)] for kind in ("yes", "no")
    )
    plain, within = row(record, heads, DEIT, "plain", "yes", "no"), "in the 95 % interval"
    made = [each for each in rows("unseen.md", "| predictions |") if each["predictions"] == "adapted"]
    found = [
        Quote(
            "| ViT-Tiny {:.2f} points, DeiT-Tiny {:.2f}; {:.2f} to {:.2f} is chance |",
            *figures(seen, "mean error"),
            *ends(figures(seen, "by chance")),
        ),
        Quote(
            "| ViT-Tiny {:.2f}, DeiT-Tiny {:.2f}; {:.0f} and {:.0f} % within the 95 % interval. "
            "Plain DeiT-Tiny {:.2f} and {:.0f} % |",
            *figures(unseen, "mean error"),
            *figures([*unseen, plain], within)[:2],
            *(number(plain["mean error"]), number(plain[within])),
        ),
        Quote(
            "average confidence alone has a mean error of {:.0f} to {:.0f} points there",
            *ends(figures(rows(record, heads), "mean error of average confidence")),
        ),
    ]
    for kind, domains in (("kind not seen", "each kind, left out of the reference"), ("outside fozo", "five families")):
        own = [{**each, "interval": each["interval"].strip("+- ")} for each in made if each["domains"] == domains]
        found.append(
            Quote(
                f"{kind}, three models{': mean error' * (kind == 'outside fozo')}"
                " | {:.1f} to {:.1f} points; {:.0f} to {:.0f} % within the interval of ± {:.0f} to {:.0f} |",
                *(end for head in ("mean error", "truth in it", "interval") for end in ends(figures(own, head))),
            )
        )
    return found


def _guard() -> list[Quote]:
    bundled = rows("guard.md", "| fell back |")
    streams = [*bundled, *rows("guard-vit-tiny.md", "| fell back |")]
    align = [each for each in streams if each["method"] == "align"]
    content = [
        each for each in streams if each["method"] == "fozo" and re.fullmatch("(only|one class) [^,]+", each["stream"])
    ]
    lost = [number(each["plain"]) - number(each["adapted"]) for each in bundled if each["fell back"] == "0 %"]
    (fog,) = (each for each in bundled if (each["method"], each["stream"]) == ("fozo", "all classes, fog"))
    return [
        Quote("and missed two of {:.0f} and {:.0f} points under a corruption", *sorted(x for x in lost if x > 5)),
        Quote(
            "guard on Align, {} streams built to hurt, ViT-Tiny and bundled model, `shadow=0.25` | fell back in {} |",
            *(len(align), sum(each["fell back"] != "0 %" for each in align)),
        ),
        Quote(
            "clean content, {} streams, `shadow=0.25` | fell back after {:.0f} to {:.0f} images, "
            "{:+.0f} to {:+.0f} points |",
            *(len(content), *ends(figures(content, "first at image")), *ends(figures(content, "changed"))),
        ),
        Quote("in fog, all classes | fell back needlessly, {:+.0f} points |", number(fog["changed"])),
    ]


def serving() -> list[Quote]:
    alone = "Alone on the machine (load 0.8"
    server, loop = (row("serve.md", alone, "bundled", what) for what in ("server, cameras: 8", "loop: adapter"))
    ratios = row("serve.md", "| httptools |", "ratio")
    bundled, vit = (
        [float(text) for text in each["against plain: adapter loop, before, now"].split(", ")]
        for each in (row("serve.md", "| server before |", model) for model in ("bundled, 28 px", "ViT-Tiny, 224 px"))
    )
    slow, _ = printed("serve.md", r"([\d.]+) without and ([\d.]+) with both in a run at load 7")
    h11 = "server, h11 and asyncio"
    memory = {
        capacity: row("serve.md", "With rows of 4 bits", "vit_tiny_patch16_224", capacity)
        for capacity in ("512", "256")
    }
    thousands, rest = printed("serve.md", r"Of (\d+) (\d+) \(seed 2\) .*? none with 5xx")
    return [
        Quote(
            "| bundled, 28 px | {} ({} images a second) | {} | 0.6, missed | 0.8 |",
            *(server["plain, processor"], server["images/s"], loop["plain, processor"]),
        ),
        Quote(
            "| the same | {:.2f} to {:.2f} | {:.2f} to {:.2f} | | 7 to 12",
            *ends([number(ratios[h11]), slow, bundled[2]]),
            *ends([number(ratios["adapter loop"]), bundled[0]]),
        ),
        Quote("| ViT-Tiny, 224 px | {} | {} | 0.9, missed | 10 |", vit[2], vit[0]),
        Quote(
            "{:.1f} MB a camera of ViT-Tiny without a monitor, {:.1f} of it what Align remembers; {:.1f} MB with `",
            *(number(memory["512"][head]) for head in ("a camera (MB)", "arrays (MB)")),
            number(memory["256"]["a camera (MB)"]),
        ),
        _server_soak(),
        Quote("fuzz_protocol`): no 5xx in {:,.0f} requests", 1000 * thousands + rest),
    ]


def _server_soak() -> Quote:
    record = "soak-serve.log.xz"
    minutes, cameras, garbage = printed(record, r"minutes=([\d.]+), cameras=(\d+), .*?garbage=([\d.]+)")
    log = [
        [number(each[head]) for head in ("minute", "memory (MiB)", "log (bytes)")]
        for each in rows(record, "| minute |")
    ]
    half = [(at, memory) for at, memory, _ in log if at > log[-1][0] / 2]
    line = linregress(*zip(*half, strict=True))
    return Quote(
        "{:.0f} minutes, {:.0f} cameras, {:.0f} % of the requests garbage: {} answered wrongly, a log of {:.0f} kB. "
        "In the last half memory grew by {:.2f} MiB a minute (95 % interval {:.2f} to {:.2f};",
        *(minutes, cameras, 100 * garbage, *words(record, r"wrong answers: (\w+)"), log[-1][2] / 1000),
        *(line.slope + times * line.stderr for times in (0, -1.96, 1.96)),
    )


def safety() -> list[Quote]:
    fuzzed = every("fuzz.md", r"^[^:]+: (\d+) inputs, .* at most (\d+) MiB and ([\d.]+) s")
    inputs, memory, seconds = zip(*fuzzed, strict=True)
    killed = every("kill.md", r"^\S.*? (\d+) +(\d+) +(\d+) +(\d+) +(\d+)$")
    kills, differing, refused, litter, orphans = (sum(column) for column in zip(*killed, strict=True))
    (settings, *log), tenth = lines("soak.log.xz"), 10
    means = [fmean(each["milliseconds"] for each in log[at : at + tenth]) for at in range(0, len(log), tenth)]
    totals: dict[str, list[int]] = {}
    for name, counts in ((name, counts) for each in log for name, counts in each["domains"].items()):
        totals[name] = [old + new for old, new in zip(totals.get(name, (0, 0, 0)), counts, strict=True)]
    garbage = totals.pop("after garbage")  # counted in their domains, too
    everything = [sum(column) for column in zip(*totals.values(), strict=True)]
    tops = [100 * right / counts[0] for counts in (everything, totals["clean"], garbage) for right in counts[1:]]
    return [
        Quote(
            "to all {} readers | `python -m tests.fuzz` | {:,.0f} inputs: a valid object or one sentence each; "
            "at most {:.0f} MiB and {:.1f} s for one |",
            *(len(fuzzed), sum(inputs), max(memory), max(seconds)),
        ),
        Quote(
            "of {} commands | `python tests/kill.py --kills 1000 --seed 1` | {:.0f} kills: {:.0f} results differ from "
            "the undisturbed ones, {:.0f} refusals to go on, {:.0f} leftover files, {:.0f} orphaned processes |",
            *(sum(each[0] > 0 for each in killed), kills, differing, refused, litter, orphans),
        ),
        Quote(
            "soak: {:,} batches of {}, {} domains, garbage",
            *(log[-1]["batches"], settings["settings"]["batch"], len(totals)),
        ),
        Quote(
            "memory {:.1f} to {:.1f} MiB; {:.1f} to {:.1f} ms of processor time a batch (means of {:.0f}) |",
            *ends(each["mebibytes"] for each in log),
            *(*ends(means), tenth * settings["settings"]["every"]),
        ),
        Quote(
            "accuracy in the soak, {:,} genuine frames | the same | {:.1f} % adapted, {:.1f} % plain; "
            "clean frames {:.2f} and {:.2f} %; after garbage {:.1f} and {:.1f} % |",
            *(everything[0], *tops),
        ),
        Quote("| {:,} frames refused, but", sum(each["counts"].get("refused", 0) for each in log)),
    ]
