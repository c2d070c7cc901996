"""Runs: training, what it measured, and what its model can do."""
from __future__ import annotations

from ._program import Error, Interrupted, Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    import threading
    from typing import Any, Callable, Mapping, Optional, Sequence, Union

    Path = Union[str, os.PathLike[str]]


class Metrics(dict):  # type: ignore[type-arg]  # of str to list of float or None; Python 3.8 has no dict[...] here
    """What a run measured: a list for each measurement, with None at steps that lack it. The list "step" has the steps."""

    def to_pandas(self) -> Any:
        """The measurements as a pandas.DataFrame by step."""
        import pandas  # type: ignore[import-untyped, unused-ignore]

        return pandas.DataFrame(dict(self)).set_index("step")


class Picture:
    """A drawing that notebooks show."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path) -> None:
        """Writes the drawing as an SVG file."""
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.svg)


class Run:
    """A training run: its folder, and its process while it trains."""

    def __init__(self, dir: Path):
        """Opens the folder of a run, also of one that another process trains."""
        import os

        self.dir: str = os.fspath(dir)
        self.start: dict[str, Any] = {}  # the parameters, the tokens, the plan of devices: of a run that train has begun
        self.result: Optional[dict[str, Any]] = None  # how it ended
        self.notes: list[str] = []
        self._process: Optional[Process] = None
        self._thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None
        self._written: Optional[str] = None  # the file with a config that was a mapping

    def __fspath__(self) -> str:
        return self.dir

    def __repr__(self) -> str:
        return f"Run({self.dir!r})"

    @property
    def running(self) -> bool:
        """Whether train has begun the run in this process, and it goes on."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> Run:
        """Waits until the run ends, and raises its error. An interrupt saves a checkpoint and ends the run first."""
        try:
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(0.2)  # without a time limit, Windows would not see an interrupt
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        """Ends the run after its present step. It saves a checkpoint, from which train(..., resume=True) continues."""
        import threading

        if self._process is not None:
            self._process.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def metrics(self) -> Metrics:
        """What the run has measured so far."""
        import json
        import os

        rows = []
        with open(os.path.join(self.dir, "metrics.jsonl"), encoding="utf-8") as f:
            for line in f:
                if line.endswith("\n"):  # the last one may be on its way
                    rows.append(json.loads(line))
        names = dict.fromkeys(name for row in rows for name in row)
        return Metrics({name: [row.get(name) for row in rows] for name in names})

    def plot(self) -> Picture:
        """Draws the losses by step."""
        m = self.metrics()
        return Picture(_draw(self.dir, m.get("step", []), {"training loss": m.get("loss", []), "validation loss": m.get("val_loss", [])}))

    def generate(self, prompt: str, **options: Any) -> str:
        """Continues a prompt with the newest checkpoint: see gpupipe.generate."""
        from . import generate

        return generate(self, prompt, **options)

    def evaluate(self, data: Optional[Union[str, Sequence[str]]] = None, **options: Any) -> dict[str, Any]:
        """Measures the loss of the newest checkpoint: see gpupipe.evaluate."""
        from . import evaluate

        return evaluate(self, data, **options)

    def export(self, out: Path, **options: Any) -> dict[str, Any]:
        """Writes the newest checkpoint for other programs: see gpupipe.export."""
        from . import export

        return export(self, out, **options)

    def _with_config(self, text: str) -> str:
        """A message of the program with "config" for the file of a mapping, which the user does not know, and its line."""
        import re

        return text if self._written is None else re.sub(re.escape(self._written) + r"(:\d+)*", "config", text)

    def _name_config(self, e: Error) -> None:
        e.args = (self._with_config(str(e)),)

    def _follow(self, process: Process, on_step: Optional[Callable[[dict[str, Any]], Any]], begun: threading.Event) -> None:
        """Reads the events of the training process to its end."""
        try:
            for e in process:
                kind = e.get("event")
                if kind == "start":
                    self.start = e["start"]
                    self.dir = self.start["dir"]
                    begun.set()
                elif kind == "step" and on_step is not None:
                    if on_step(e["step"]) is False:
                        process.stop()
                elif kind == "note":
                    self.notes.append(self._with_config(e["text"]))
                elif kind == "result":
                    self.result = e["result"]
        except Interrupted as e:
            if self.result is None:
                self._error = e
                self._name_config(e)
        except BaseException as e:  # also of on_step; wait raises it
            self._error = e
            if isinstance(e, Error):
                self._name_config(e)
        finally:
            begun.set()


def train(config: Optional[Union[Path, Mapping[str, Any]]] = None, *, on_step: Optional[Callable[[dict[str, Any]], Any]] = None,
          settings: Optional[Mapping[str, Any]] = None, resume: bool = False, device: Optional[str] = None, wait: bool = True) -> Run:
    """Trains a model, and returns its run.

    config is a YAML file, the folder of a run to resume, or a mapping with the sections of such a file. settings override
    keys: {"train.steps": 100}. on_step is called after each step with its measurements: step, loss, tokens_per_s and others;
    if it returns False, the run saves and ends. With wait=False the run goes on in the background: Run.wait and Run.stop
    end it. resume continues from the newest checkpoint in run.dir.
    """
    import json
    import os
    import tempfile
    import threading

    written = None
    args: tuple[str, ...] = ()
    if isinstance(config, (str, os.PathLike)):
        args = (os.fspath(config),)
    elif config is not None:
        handle, written = tempfile.mkstemp(suffix=".yaml", prefix="gpupipe-")
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(config, f, default=os.fspath)  # JSON is YAML
        args = (written,)
    values = [f"{key}={v if isinstance(v, str) else json.dumps(v, default=os.fspath)}" for key, v in (settings or {}).items()]
    run = Run("")
    run._written = written
    run._process = process = Process("train", args, {"set": values, "resume": resume, "device": device})
    begun = threading.Event()
    run._thread = threading.Thread(target=run._follow, args=(process, on_step, begun), daemon=True)
    run._thread.start()
    try:
        while not begun.wait(0.2):
            pass
        if wait or run._error is not None:
            run.wait()
    except KeyboardInterrupt:
        run.stop()
        raise
    finally:
        if written is not None:
            os.unlink(written)
    return run


_COLORS = ("#4c72b0", "#dd8452")


def _draw(title: str, steps: Sequence[float], series: Mapping[str, Sequence[Optional[float]]]) -> str:
    """Lines by step, as SVG."""
    from html import escape

    width, height, left, top, below = 720, 400, 60, 30, 40
    lines = {name: [(s, y) for s, y in zip(steps, ys) if isinstance(y, (int, float)) and y == y and abs(y) != float("inf")]
             for name, ys in series.items()}
    lines = {name: points for name, points in lines.items() if points}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="18" font-size="14">{escape(title)}</text>']
    if lines:
        xs = [float(s) for points in lines.values() for s, _ in points]
        ys = [float(v) for points in lines.values() for _, v in points]
        x0, x1, y0, y1 = min(xs), max(max(xs), min(xs) + 1), min(ys), max(max(ys), min(ys) + 1e-9)
        right, bottom = width - 15, height - below

        def x(v: float) -> float:
            return left + (v - x0) / (x1 - x0) * (right - left)

        def y(v: float) -> float:
            return bottom - (v - y0) / (y1 - y0) * (bottom - top)

        for i in range(5):
            vx, vy = x0 + (x1 - x0) * i / 4, y0 + (y1 - y0) * i / 4
            out.append(f'<path d="M{left} {y(vy):.1f}H{right}" stroke="#ddd"/><text x="{left - 6}" y="{y(vy) + 4:.1f}" text-anchor="end">{vy:.3g}</text>'
                       f'<text x="{x(vx):.1f}" y="{bottom + 16}" text-anchor="middle">{vx:.0f}</text>')
        for i, (name, points) in enumerate(lines.items()):
            color = _COLORS[i % len(_COLORS)]
            path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
            out.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
                       f'<text x="{right}" y="{top + 12 + 16 * i}" text-anchor="end" fill="{color}">{name}</text>')
        out.append(f'<text x="{(left + right) / 2}" y="{height - 6}" text-anchor="middle">step</text>')
    return "".join(out) + "</svg>"
