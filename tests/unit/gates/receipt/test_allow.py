# SPDX-License-Identifier: Apache-2.0
"""What may enter a receipt, and what may not."""

import pytest

from stackctl.gates.receipt.allow import (
    MOST_KNOWN,
    REMOVED,
    Filter,
    private_values,
    variable_allowed,
)

KEPT = [
    "kpool4/4080: ratio 0.982 (0.97 to 0.99), 3 more pairs would decide",
    "torch 2.11.0+cu130, Triton 3.6, driver 580.159.04, vllm 0.33.0rc1",
    "tests/kernels/test_kpool.py::TestPool::test_x[dtype0-(1, 2, 3)-bf16]",
    "time to first token is 48.2 ms; the GPU was busy (97 %)",
    "GLM-5.3 on NVIDIA H200, sm_90, fp8_e4m3",
    "AMD EPYC 9654 96-Core Processor",
    "Intel(R) Xeon(R) Platinum 8480+",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ModuleNotFoundError: No module named 'triton'",
    "RuntimeError: CUDA error: out of memory",
    "{python} -m pytest {tree:on}/tests --model={model} -k 'a and not b'",
    "-4.1 % +4.65 % ±0.3 1e-05 1.5x 12.5ms 6.1.0-18-amd64",
    "gpu__time_duration.sum clocks.max.sm torch.cuda.Event",
    "A/A control: [-0.01, 0.02]; µ 0.0294 each, déjà vu",
    "vllm/models/glm5_3/ops/kpool_compress.py",
    "c8/ctx4096:tokens_per_s",
    "GlmMoeDsaForCausalLM",
    "it's 9 pairs, e.g. 5 of them (looks 5, 9)",
    "its `stop.verdict` must be one of not-tested, invalid, rejected",
    "its `samples.cases[0].id` must be a text, its `engagement.on.counted` an integer",
]
REFUSED = [
    "/home/ada/models", "/root/.cache", "~/x", "../../etc", "C:\\Users\\ada",
    "'/home/ada/x'", "path=/srv/data", "file:///srv/x", "home/ada/vllm/x.py",
    "Users/ada/vllm", "vllm/../../ada", "https://example.org/x", "s3://bucket/key",
    "ada@example.org", "git@host:repo", "gpu-07.internal.example", "node7.cluster.sh",
    "10.0.0.1", "10.0.0.1:8000", "fe80::1", "aa:bb:cc:dd:ee:ff", "ip-10-0-3-17",
    "00-1a-2b-3c-4d-5e",
    "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB", "github_pat_11ABCDEFG0aBcDeFgHiJkL",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "sk-proj-aBcDeFgHiJkLmNoPqRsT",
    "AKIAIOSFODNN7EXAMPLE", "xoxb-1234-abcdef", "glpat-abcdefghij0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "password=hunter2",
    "TOKEN=abc", "api_key:xyz", "?token=abc&x=1", "0123456789abcdef0123456789abcdef",
    "8e2f1c3a-1234-4234-8234-123456789012", "a" * 40, "wJalrXUtnFEMIK7MDENGbPxRfiCY",
    "\x1b[31mred", "bad\udc80", "x" * 241,
]  # fmt: skip


@pytest.mark.parametrize("text", KEPT)
def test_words_figures_and_names_are_kept(text: str) -> None:
    assert Filter().text(text) == text


@pytest.mark.parametrize("text", REFUSED)
def test_places_addresses_and_secrets_are_removed(text: str) -> None:
    kept = Filter().text(f"before {text} after")
    assert kept == f"before {REMOVED} after"
    assert Filter().argument(text) == REMOVED


@pytest.mark.parametrize(
    "text",
    ["password hunter", "Password: hunter", "Bearer zzz", "api_key hunter",
     "token: hunter", "the secret hunter", "--token hunter", "Authorization: hunter"],
)  # fmt: skip
def test_what_is_announced_as_a_secret_is_removed(text: str) -> None:
    assert Filter().text(text).endswith(REMOVED)
    assert "hunter" not in Filter().text(text + " x")


def test_a_text_at_the_key_of_a_secret_or_a_name_is_removed() -> None:
    keys = ["password", "api_key", "apiKey", "HF-TOKEN", "auth", "hostname", "user"]
    given = {key: ["hunter", 1] for key in keys}
    told = {"cells": {"c/host": {"order": ["base", "on"]}}, "tokens": "many"}
    kept = Filter().value({**given, **told})
    assert kept == {**{key: [REMOVED, 1] for key in keys}, **told}
    assert Filter().value(kept) == kept


def test_an_option_for_a_secret_takes_its_value_along() -> None:
    given = ["run", "--api-key", "hunter", "--rounds", "6", "--token=hunter"]
    assert Filter().arguments(given) == [
        "run", "--api-key", REMOVED, "--rounds", "6", REMOVED,
    ]  # fmt: skip


def test_what_the_gate_s_file_spells_stays_on_a_command_line() -> None:
    own = [
        "--expect=on@graphs*:vllm.models.glm5next.x:Owner._made.*.counters.fired",
        "--forbid=off:vllm.models.glm5next.x:stats.captured",
    ]
    assert Filter().arguments(own) == [REMOVED, REMOVED]
    assert Filter().arguments(own, own) == own
    # Of another file it is not; nor what is private here, or a secret, wherever.
    assert Filter().arguments(own, own[1:]) == [REMOVED, own[1]]
    told = ["--tree=/srv/ada/tree", "--x=hf_abcdefghij", "--api-key", "core"]
    assert Filter(["ada"]).arguments(told, told) == [
        REMOVED,
        REMOVED,
        "--api-key",
        REMOVED,
    ]


def test_names_of_this_machine_and_its_user_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "HOSTNAME": "bluewhale",
        "USER": "adalove",
        "HOME": "/home/lovelace",
        "DEPLOY_TOKEN": "correct horse",
        "LANG": "C",
    }.items():
        monkeypatch.setenv(name, value)
    chosen = Filter(private_values(["greywhale"]))
    for word in ("bluewhale", "AdaLove", "lovelace", "greywhale", "correct horse"):
        for text in (word, f"on {word}: busy", f"x-{word}_1", f"({word})"):
            assert word.lower() not in chosen.text(text).lower()
    assert chosen.text("a horse, a whale and C are words") == (
        "a horse, a whale and C are words"
    )


@pytest.mark.parametrize(
    "name", ["PGPASSWORD", "SSHPASS", "HFTOKEN", "MYSQL_PWD", "MY_TOKEN", "API_KEY"]
)
def test_values_of_secret_variables_are_removed_inside_of_words_too(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "open-sesame-7")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "parallel")
    kept = Filter(private_values()).text("open-sesame-7 xopen-sesame-7y parallel")
    assert kept == f"{REMOVED} x{REMOVED}y parallel"


def test_what_the_project_names_stays_whoever_the_user_is() -> None:
    chosen = Filter(["base", "on"], public={"base", "on"})
    assert chosen.name("base") == "base"
    assert chosen.text("the base case") == f"the {REMOVED} case"


def test_two_removed_names_stay_two_names() -> None:
    chosen = Filter()
    names = ["/tmp/a", "/tmp/b", "/tmp/a", "kept"]
    assert [chosen.name(name) for name in names] == [
        "removed-1", "removed-2", "removed-1", "kept",
    ]  # fmt: skip


def test_variables_of_the_allow_list_only() -> None:
    kept = Filter().environment(
        {
            "VLLM_KPOOL_PARALLEL": "1",
            "LC_ALL": "C",
            "CUDA_VISIBLE_DEVICES": "0,GPU-01234567-89ab-cdef-0123-456789abcdef",
            "VLLM_API_KEY": "x",
            "VLLM_HOST_IP": "10.0.0.1",
            "VLLM_CACHE_ROOT": "/home/ada",
            "TRITON_CACHE_DIR": "/home/ada",
            "HOME": "/home/ada",
            "PATH": "/usr/bin",
            "HF_TOKEN": "x",
            "VLLM_LOGGING_PREFIX": "/home/ada",
        }
    )
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "0,GPU-01234567-89ab-cdef-0123-456789abcdef",
        "LC_ALL": "C",
        "VLLM_KPOOL_PARALLEL": "1",
        "VLLM_LOGGING_PREFIX": REMOVED,
    }
    assert not variable_allowed("VLLM_abc")


def test_a_unit_keeps_its_samples_and_loses_unknown_keys() -> None:
    unit = {
        "unit": 0,
        "exit": 1,
        "ns": 5,
        "stdout": "/home/ada",
        "answer": {
            "samples": {"cells": {"c8/ctx4096": {"ttft_ns": [1, 2], "x": 0.5}}},
            "stop": {"verdict": "invalid", "reason": "see /home/ada/log"},
            "hostname": "bluewhale",
            "extra": {"/home/ada": 1, "tree": "1" * 40, "word": "1" * 40},
        },
        "host": {"load_before": 0.5, "node": "bluewhale"},
        "gpus": [{"uuid": "GPU-not-one", "serial": "123", "throttled": False}],
        "problems": ["ended by a signal: /usr/bin/python"],
    }
    assert Filter().unit(unit) == {
        "unit": 0,
        "exit": 1,
        "ns": 5,
        "answer": {
            "samples": {"cells": {"c8/ctx4096": {"ttft_ns": [1, 2], "x": 0.5}}},
            "stop": {"verdict": "invalid", "reason": f"see {REMOVED}"},
            "extra": {"removed-1": 1, "tree": "1" * 40, "word": REMOVED},
        },
        "host": {"load_before": 0.5},
        "gpus": [{"uuid": REMOVED, "throttled": False}],
        "problems": [f"ended by a signal: {REMOVED}"],
    }


def test_the_scope_has_known_keys_only() -> None:
    scope = {
        "hardware": {"gpus": [{"name": "NVIDIA H200", "serial": "1", "uuid": "x"}]},
        "host": {"hostname": "bluewhale", "cpus": 16},
        "versions": {"torch": "2.11.0+cu130", "path": "/home/ada"},
        "user": {"name": "ada"},
    }
    assert Filter().scope(scope) == {
        "hardware": {"gpus": [{"name": "NVIDIA H200", "uuid": REMOVED}]},
        "host": {"cpus": 16},
        "versions": {"torch": "2.11.0+cu130"},
    }


def test_a_long_text_is_cut_at_a_space() -> None:
    kept = Filter().text("word " * 1000)
    assert len(kept) <= 2000
    assert kept.endswith("word ...")
    assert Filter().text(kept) == kept


def test_the_work_for_many_samples_is_that_for_their_names(monkeypatch) -> None:
    """A gate may compare half a million cases: their keys are looked at once."""
    looked: list[str] = []
    real = Filter._text
    monkeypatch.setattr(
        Filter, "_text", lambda self, text: looked.append(text) or real(self, text)
    )

    def work(count: int) -> int:
        looked.clear()
        cases = [
            {"id": f"case-{n}", "equal": True, "elements": 64, "note": "as it should"}
            for n in range(count)
        ]
        answer = {"schema": 1, "samples": {"cases": cases}}
        kept = Filter(["secret-name"]).unit({"unit": 0, "answer": answer})
        assert kept["answer"] == answer
        return len(looked)

    few, many = work(500), work(1000)
    assert few <= 500 + 10 and many - few == 500


def test_what_is_remembered_is_what_was_made() -> None:
    chosen = Filter(["ada"])
    texts = ["by ada", "/home/ada/x", "fine", "by ada", "/home/ada/x", "fine"]
    made = [chosen.text(text) for text in texts]
    assert made[:3] == made[3:] == ["by [removed]", "[removed]", "fine"]
    names = [chosen.name(text) for text in ("ada", "ada b", "ada", "ada b")]
    assert names == ["removed-1", "removed-2", "removed-1", "removed-2"]
    many = [f"word-{n} by ada" for n in range(MOST_KNOWN + 50)]
    assert {chosen.text(text).rpartition(" ")[2] for text in many} == {"[removed]"}
    assert len(chosen._known) <= MOST_KNOWN
