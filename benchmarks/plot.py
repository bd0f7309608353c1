"""Draws what steps.py measured: `python benchmarks/plot.py [--results FOLDER] [--out FILE.svg]`.

One panel per kind of device, one group of bars per model: the time of a step over PyTorch eager's, with the
milliseconds above the bar. Of several results for a model the newest counts. The picture has no background, and colours
that can be read on a light and on a dark page.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("mlp", "cnn", "gpt-char", "gpt2-124m", "unet")
BARS = {  #: What is drawn, its name and its colour.
    "eager": ("PyTorch eager", "#9aa4b1"),
    "compile": ("torch.compile", "#d29a2e"),
    "gt": ("GT, plain loop", "#6cb0f5"),
    "gt_function": ("GT, @gt.function", "#2f7be0"),
}
BAR, GAP, LEFT, TOP, HEIGHT, BELOW = 34, 40, 56, 64, 200, 62  #: Pixels; the last three are of a panel.
STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 12px; fill: #57606a }
.title { font-size: 14px; font-weight: 600; fill: #1f2328 }
.small { font-size: 10.5px }
.line { stroke: #8b949e; stroke-width: 1; stroke-opacity: 0.35 }
.one { stroke: #8b949e; stroke-width: 1; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) { text { fill: #a7b1bc } .title { fill: #e6edf3 } }
.inside { fill: #0d1117 }
"""


def newest(folder: Path) -> dict[str, dict[str, Any]]:
    """By kind of device: when, where and with what was measured, and the newest figures of each model."""
    found: dict[str, dict[str, Any]] = {}
    results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    results = [
        r for r in results if r["benchmark"] == "steps" and "models" in r and not r["tier1"] and not r.get("zoo")
    ]
    for result in sorted(results, key=lambda r: r["date"]):
        panel = found.setdefault(result["device"], {"models": {}})
        about = f"{result['device_name']}, torch {result['torch']}, {result['date'][:10]}"
        panel["about"] = about.replace("cpu,", "one CPU thread,", 1)
        for name, facts in result["models"].items():
            if "eager" in facts.get("step_ms", {}):
                panel["models"][name] = facts
    return {device: panel for device, panel in found.items() if panel["models"]}


def top_of(panel: dict[str, Any]) -> float:
    """The highest bar of a panel, over eager's, and some room, in quarters."""
    times = [facts["step_ms"] for facts in panel["models"].values()]
    return math.ceil(max(t[key] / t["eager"] for t in times for key in BARS if key in t) * 4 + 0.4) / 4


def draw(panels: dict[str, dict[str, Any]]) -> str:
    """The picture as SVG text."""
    group = len(BARS) * BAR + GAP
    width = LEFT + max(len(panel["models"]) for panel in panels.values()) * group + GAP // 2
    width = max(width, LEFT + 560)  # room for the legend
    height = 34 + len(panels) * (TOP + HEIGHT + BELOW)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="Time of a training step over PyTorch eager">',
        f"<style>{STYLE}</style>",
    ]
    x = LEFT
    for text, colour in BARS.values():
        out.append(f'<rect x="{x}" y="12" width="12" height="12" rx="2" fill="{colour}"/>')
        out.append(label(x + 18, 22, text))
        x += 36 + 7 * len(text)
    for k, device in enumerate(sorted(panels, reverse=True)):  # cuda, then cpu
        draw_panel(out, panels[device], 34 + k * (TOP + HEIGHT + BELOW) + TOP, width)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def label(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def draw_panel(out: list[str], panel: dict[str, Any], y: int, width: int) -> None:
    """One device. `y` is the top edge of the bars' field."""
    floor, top = y + HEIGHT, top_of(panel)

    def at(ratio: float) -> float:
        return floor - HEIGHT * ratio / top

    out.append(label(LEFT, y - 38, panel["about"], "title"))
    out.append(label(LEFT, y - 20, "time of a training step over eager's; above the bars: ms", "small"))
    for ratio in range(int(top) + 1):
        kind = "one" if ratio == 1 else "line"
        out.append(f'<line class="{kind}" x1="{LEFT}" y1="{at(ratio):g}" x2="{width - 8}" y2="{at(ratio):g}"/>')
        out.append(label(LEFT - 8, at(ratio) + 4, str(ratio), "small", "end"))
    x = LEFT + GAP // 2
    for name in (n for n in ORDER if n in panel["models"]):
        facts = panel["models"][name]
        times = facts["step_ms"]
        for key, (text, colour) in BARS.items():
            if key in times:
                high = at(times[key] / times["eager"])
                box = f'x="{x + 2}" y="{high:g}" width="{BAR - 4}" height="{floor - high:g}" rx="2" fill="{colour}"'
                hint = escape(f"{name}, {text}: {times[key]:.3f} ms")
                out.append(f"<rect {box}><title>{hint}</title></rect>")
                struck = high - 14 < at(1) < high - 2  # by the line at 1: then the number stands in the bar
                place, kind = (high + 13, "small inside") if struck else (high - 4, "small")
                out.append(label(x + BAR / 2, place, short(times[key]), kind, "middle"))
            x += BAR
        middle = x - len(BARS) * BAR / 2
        out.append(label(middle, floor + 18, name, "", "middle"))
        for line, words in enumerate(two_lines(facts["text"])):
            out.append(label(middle, floor + 33 + 13 * line, words, "small", "middle"))
        x += GAP


def short(ms: float) -> str:
    """Three digits, or two for small times."""
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 0.1 else f"{ms:.3f}"


def two_lines(text: str) -> list[str]:
    """Broken at the comma nearest to the middle."""
    parts = text.split(", ")
    if len(parts) == 1:
        return parts
    cut = min(range(1, len(parts)), key=lambda k: abs(len(", ".join(parts[:k])) - len(", ".join(parts[k:]))))
    return [", ".join(parts[:cut]), ", ".join(parts[cut:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "steps.svg", help="file (%(default)s)")
    args = parser.parse_args()
    panels = newest(args.results)
    if not panels:
        sys.exit(f"plot: no results of steps.py in {args.results}; make some with its --json")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(draw(panels), encoding="utf-8")
    print(args.out)


if __name__ == "__main__":
    main()
