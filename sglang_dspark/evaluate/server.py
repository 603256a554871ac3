"""A running SGLang server as the judge: it is asked over HTTP and says itself what its rounds kept.

The counts are those of SGLang's `meta_info`: `spec_correct_drafts_histogram`, how many verify steps kept 0, 1, 2, ...
proposals, and `spec_cap_lens_histogram`, how many tokens they verified. Both are exact for each request, whatever
else the server is doing. Chat prompts go to /v1/chat/completions, which applies the model's own template; others to
/generate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_dspark.evaluate.answer import Answer, Settings
from sglang_dspark.evaluate.counts import Counts
from sglang_dspark.server_http import ServerError, request


class ServerJudge:
    """The server at a URL.

    Args:
        url: as in http://127.0.0.1:30000.
        settings: of every request.
        timeout_s: of one request.

    Raises:
        ServerError: nothing answers there, it is no SGLang server, or it runs without speculation.
    """

    def __init__(self, url: str, settings: Settings, timeout_s: float = 1800.0) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ServerError(f"asked for a server's address, found {url!r}: http://127.0.0.1:30000, say")
        self.settings, self.timeout_s = settings, timeout_s
        self.info = read_info(self.url)
        _check_acceptance_is_real(self.url, self.info)
        self.gamma = int(self.info["speculative_num_draft_tokens"]) - 1

    def describe(self) -> dict[str, Any]:
        """The server's own words on itself."""
        keys = ("version", "model_path", "speculative_draft_model_path", "device", "dtype", "tp_size", "kv_cache_dtype")
        return {"kind": "server", "url": self.url, **{key: self.info.get(key) for key in keys}}

    def ask(self, text: str) -> Answer:
        """Answer one prompt.

        Raises:
            ServerError: the request failed, or its answer lacks the counts.
        """
        meta = self._ask_chat(text) if self.settings.chat else self._ask_plain(text)
        histogram = meta.get("spec_correct_drafts_histogram") or []
        # The first token comes from the prompt's own pass: an answer of one token has no round.
        if not histogram and int(meta["completion_tokens"]) > 1:
            raise ServerError(
                f"asked {self.url} for spec_correct_drafts_histogram, found {sorted(meta)} with an answer of "
                f"{meta['completion_tokens']} tokens: this server does not say what its rounds kept; SGLang 0.5.23 does"
            )
        counts = Counts.of_histogram(histogram, self.gamma, meta.get("spec_cap_lens_histogram") or ())
        return Answer(counts, int(meta["prompt_tokens"]), int(meta["completion_tokens"]))

    def _ask_plain(self, text: str) -> dict[str, Any]:
        sampling = {
            "temperature": self.settings.temperature,
            "max_new_tokens": self.settings.max_new_tokens,
            "ignore_eos": self.settings.ignore_end,
        }
        answer = request(f"{self.url}/generate", {"text": text, "sampling_params": sampling}, self.timeout_s)
        return dict(answer["meta_info"])

    def _ask_chat(self, text: str) -> dict[str, Any]:
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": text}],
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_new_tokens,
            "ignore_eos": self.settings.ignore_end,
            "chat_template_kwargs": dict(self.settings.template),
            "return_meta_info": True,
        }
        answer = request(f"{self.url}/v1/chat/completions", body, self.timeout_s)
        return dict(answer["choices"][0]["meta_info"])


def read_info(url: str) -> dict[str, Any]:
    """The /server_info of a server that speculates with DSPARK.

    Raises:
        ServerError: see `ServerJudge`.
    """
    info = request(f"{url}/server_info", None, timeout_s=60.0)
    if not isinstance(info, dict) or "version" not in info or "speculative_algorithm" not in info:
        raise ServerError(f"asked {url}/server_info for an SGLang server's settings, found something else there")
    algorithm = info["speculative_algorithm"]
    if str(algorithm).upper() != "DSPARK":
        found = "no speculation" if algorithm is None else f"speculation by {algorithm}"
        raise ServerError(
            f"asked {url} for a server that drafts with DSPARK, found {found}; start it with --speculative-algorithm "
            "dspark --speculative-draft-model-path DRAFT"
        )
    return info


def _check_acceptance_is_real(url: str, info: Mapping[str, Any]) -> None:
    # Known where the server records its steps, which is also when one simulates.
    records = [state.get("dspark_info_record") or {} for state in info.get("internal_states") or []]
    simulated = [record["simulate_acc_len"] for record in records if record.get("simulate_acc_len")]
    if simulated:
        raise ServerError(
            f"asked {url} what its rounds keep, found that it simulates an accepted length of {simulated[0]}; start it "
            "without SGLANG_SIMULATE_ACC_LEN"
        )
