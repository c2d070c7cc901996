"""Tests of the package: python -m unittest discover cmd/python/tests. GPUPIPE names the program, unless a wheel is installed."""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import gpupipe


def config(folder, **train):
    text = pathlib.Path(folder, "text.txt")
    text.write_text("the cat sat on the mat. a dog ran to the cat. " * 60)
    return {"model": {"vocab_size": 256, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "seq_len": 16},
            "data": {"train": [text], "val_fraction": 0.1},
            "train": {"steps": 12, "batch_size": 4, "eval_every": 4, **train}, "run": {"dir": str(pathlib.Path(folder, "run"))}}


class Test(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_train(self):
        steps = []
        run = gpupipe.train(config(self.folder), on_step=steps.append, device="null")
        self.assertEqual([s["step"] for s in steps], list(range(1, 13)))
        self.assertEqual(run.result["step"], 12)
        self.assertEqual(os.path.realpath(run.dir), os.path.realpath(os.path.join(self.folder, "run")))
        self.assertFalse(run.running)
        m = run.metrics()
        self.assertEqual(len(m["loss"]), 12)
        self.assertEqual(m["step"], list(range(1, 13)))
        self.assertEqual(sum(x is not None for x in m["val_loss"]), 3)
        try:
            import pandas  # noqa: F401
        except ImportError:
            with self.assertRaises(ImportError):
                m.to_pandas()
        else:
            self.assertEqual(len(m.to_pandas()), 12)
        picture = run.plot()
        self.assertIn("validation loss", picture._repr_svg_())
        picture.save(os.path.join(self.folder, "loss.svg"))
        self.assertTrue(run.generate("the", tokens=3, device="null").startswith("the"))
        self.assertGreater(run.evaluate(device="null")["tokens"], 0)  # the device null computes nothing
        self.assertIn("perplexity", gpupipe.evaluate(run.dir, os.path.join(self.folder, "text.txt"), device="null"))
        out = gpupipe.Run(run.dir).export(os.path.join(self.folder, "out"))
        self.assertIn("config.json", out["files"])
        again = gpupipe.train(run.dir, resume=True, settings={"train.steps": 14, "run.dir": run.dir}, device="null")
        self.assertEqual(again.result["step"], 14)

    def test_stop(self):
        run = gpupipe.train(config(self.folder, steps=10**6), on_step=lambda s: s["step"] < 5, device="null")
        self.assertGreaterEqual(run.result["step"], 5)
        self.assertTrue(run.result["interrupted"])
        reached = threading.Event()
        first = run.result["step"]

        def more(step):
            if step["step"] > first:
                reached.set()

        run = gpupipe.train(run.dir, resume=True, on_step=more, wait=False, device="null")
        self.assertTrue(run.running)
        reached.wait()
        run.stop()
        self.assertGreater(run.wait().result["step"], first)

    def test_errors(self):
        c = config(self.folder)
        c["train"]["stepz"] = 1
        with self.assertRaisesRegex(gpupipe.BadInput, "^config: train.stepz: unknown key"):
            gpupipe.train(c)
        with self.assertRaises(gpupipe.BadInput) as e:
            gpupipe.generate(os.path.join(self.folder, "none"), "x")
        self.assertIn("none", str(e.exception))
        self.assertFalse(str(e.exception).startswith("gpupipe: "))
        self.assertEqual(e.exception.code, 2)
        with self.assertRaisesRegex(gpupipe.BadInput, "train.steps"):
            gpupipe.train(config(self.folder), settings={"train.steps": -1})

        def fail(step):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            gpupipe.train(config(self.folder, steps=10**6), on_step=fail, device="null")

    def test_commands(self):
        self.assertIn("--tokens=-5", gpupipe._program._arguments("x", (), {"tokens": -5}))
        self.assertEqual(gpupipe._program._arguments("x", ("-y",), {"a_b": ["1", "2"], "c": True, "d": False, "e": None})[1:],
                         ["x", "--json", "--a-b=1", "--a-b=2", "--c", "--", "-y"])
        self.assertEqual(gpupipe._program._arguments("tokenizer check", ("bytes",), {})[1:], ["tokenizer", "check", "--json", "--", "bytes"])
        self.assertTrue(gpupipe.command("devices"))

    def test_import_is_light(self):
        text = "import sys; before = set(sys.modules); import gpupipe; print(sorted(m for m in set(sys.modules) - before if not m.startswith('gpupipe')))"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        out = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, env=env, check=True).stdout.decode().strip()
        self.assertEqual(out, "['__future__']", "imports cost milliseconds each")


if __name__ == "__main__":
    unittest.main()
