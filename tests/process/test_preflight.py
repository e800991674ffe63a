"""What a job is like once the machine was looked at, on GPUs of a fake driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from model_files import GIB, LLAMA_8B, QWEN_AWQ, made

from process.living import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Machine = Callable[[int], dict[str, str]]

PREPARE = """
import json
from mgpu_magic.options import Options
from mgpu_magic.preparation import prepare
from mgpu_magic.survey import Living
def job(**options):
    return Options.of(prompts=["a"], max_model_len=100, **options).job()
"""


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_t4_gets_float16_and_it_is_said_once(tmp_path: Path, gpus: Machine, engine: str) -> None:
    """No dtype and a model in bfloat16: both engines alike; a model that is loaded says no more."""
    model = made(tmp_path / "llama", LLAMA_8B, 1000)
    script = (
        PREPARE
        + f"""
asked = job(model={model!r}, engine={engine!r})
cold = prepare(asked, "all")
warm = prepare(asked, "all", living=[Living(one.spec, 1) for one in cold.placed])
other = prepare(job(model={model!r}, engine={engine!r}, engine_args={{"dtype": "float32"}}), "all")
print(json.dumps([
    [one.spec.engine_args["dtype"] for one in cold.placed], cold.notes,
    warm.placed == cold.placed, warm.notes, other.notes,
]))
"""
    )
    dtypes, notes, same, more, chosen = run_script(tmp_path, script, **gpus(2))
    assert dtypes == ["float16", "float16"]
    assert notes == [
        "llama: cuda:0, cuda:1: float16 instead of the model's bfloat16, which Tesla T4 (7.5) does "
        "not have."
    ]
    assert (same, more, chosen) == (True, [], [])


OCCUPIED = (
    PREPARE
    + """
import os, fake_nvml, subprocess
from fake_nvml import GIB, FakeGpu
from pathlib import Path
from mgpu_magic.errors import PlacementError
child = subprocess.Popen(["sleep", "60"])
def machine(**processes):
    used = {int(pid): int(gib * GIB) for pid, gib in processes.items()}
    card = FakeGpu(uuid="GPU-aaaa", used_bytes=12 * GIB, processes=used)
    fake_nvml.write_config(Path(os.environ["FAKE_NVML_CONFIG"]), [card])
said = []
machine()
spec = prepare(job(model=small), "all").placed[0].spec
ours = [Living(spec, child.pid)]
for living, processes in ((ours, {child.pid: 12}), (ours, {999999: 12}), ((), {child.pid: 12})):
    machine(**{str(pid): gib for pid, gib in processes.items()})
    try:
        said.append(prepare(job(model=model), "all", living=living).notes)
    except PlacementError as error:
        said.append(str(error).replace(str(child.pid), "PID"))
child.kill()
child.wait()
print(json.dumps(said))
"""
)


def test_memory_of_our_own_workers_is_given_back(tmp_path: Path, gpus: Machine) -> None:
    """Known to be ours: it fits; perhaps ours, as in a container: no word; another's: refused."""
    model = made(tmp_path / "awq", QWEN_AWQ, 5 * GIB, kind="I32")
    small = made(tmp_path / "small", QWEN_AWQ, 1000, kind="I32")
    script = f"model, small = {model!r}, {small!r}\n{OCCUPIED}"
    known, perhaps, foreign = run_script(tmp_path, script, **gpus(1))
    assert known == []
    assert perhaps == []
    assert foreign.startswith(
        "awq: cuda:0: the weights take 5.0 GiB; 3.0 of 15.0 GiB are free, used by pid PID"
    )


ENSEMBLE = """
import json, mgpu_magic
from mgpu_magic.options import Options
with mgpu_magic.Session("cpu:1") as session:
    models = {"good": {"model": "m", "engine": "echo"}, "cut": {"model": cut, "engine": "vllm"}}
    run = session.submit(Options(models=models, prompts=["a", "b"], journal=journal).job())
    run.wait(30)
    failures = run.result()["cut"].failures
    print(json.dumps([
        run.result()["good"].texts, [(f.index, f.error.kind, f.attempts) for f in failures],
        failures[0].error.message, run.snapshot.job.notes, run.snapshot.job.done,
    ]))
"""


def test_a_model_that_cannot_be_loaded_leaves_the_results_of_others(tmp_path: Path) -> None:
    """Its rows fail with what is wrong, the cell says so, nothing is started for it."""
    model = made(tmp_path / "cut", LLAMA_8B, 1000)
    with (tmp_path / "cut/model.safetensors").open("r+b") as file:
        file.truncate(500)
    script = f"cut, journal = {model!r}, {str(tmp_path / 'j.jsonl')!r}\n{ENSEMBLE}"
    texts, failures, message, notes, done = run_script(tmp_path, script)
    assert texts == ["a", "b"]
    assert failures == [[0, "PlacementError", 0], [1, "PlacementError", 0]]
    assert message.startswith("cut: model.safetensors is cut: it has 500 of ")
    assert f"Not loaded: {message}" in notes
    assert done == 4


HUB = """
import json, os, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        files = [{"rfilename": "model.safetensors", "size": size},
                 {"rfilename": "pytorch_model.bin", "size": 7}]
        body = json.dumps({"id": "org/tiny", "siblings": files}).encode()
        self.send_response(200 if "org/tiny" in self.path else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): ...
server = HTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
import mgpu_magic
with mgpu_magic.Session("cpu:1") as session:
    print(json.dumps([repr(session.check(name)) for name in ("org/tiny", "org/none")]))
"""


def test_check_asks_the_hub_for_the_size(tmp_path: Path) -> None:
    """A model that is not here: how much would be downloaded, and whether the disk has room."""
    environ = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    tiny, none = run_script(tmp_path, f"size = {10**15}{HUB}", **environ)
    assert "org/tiny: 931322.6 GiB of weights, 0 MiB of them here" in tiny
    assert "GiB are to be downloaded; " in tiny
    assert f"GiB are free in {tmp_path}/hub/models--org--tiny" in tiny
    assert "org/none: not on this machine yet, its size is not known" in none
    assert "Whether it fits is not known." in none
