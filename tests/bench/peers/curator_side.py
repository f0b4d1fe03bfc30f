"""bespokelabs-curator: one `LLM` for each call over the whole data set, the next one on what the last one gave.

As its documentation chains dependent calls. Its limits by minute are set out of reach, so that the concurrent calls
bound it; cache, viewer and telemetry are off.
"""

from __future__ import annotations

import sys
from typing import Any

from bespokelabs import curator  # type: ignore[import-not-found]

from tests.bench.peers.job import CALLS, Job, done

OUT_OF_REACH = 10**9


class Call(curator.LLM):  # type: ignore[misc]
    """One of the calls."""

    def __init__(self, job: Job, call: str) -> None:
        self.job = job
        self.call = call
        super().__init__(
            model_name="standin",
            backend="openai",
            response_format=CALLS[call],
            backend_params={
                "base_url": job.url,
                "api_key": "EMPTY",
                "max_concurrent_requests": job.in_flight,
                "max_requests_per_minute": OUT_OF_REACH,
                "max_tokens_per_minute": OUT_OF_REACH,
            },
            generation_params={"max_tokens": 2400, "temperature": 0.7},
            system_prompt=job.system,
        )

    def prompt(self, input: dict[str, Any]) -> str:
        return self.job.user_message(self.call, input)

    def parse(self, input: dict[str, Any], response: Any) -> dict[str, Any]:
        return {**input, self.call: response.model_dump_json()}


def main(job: Job) -> None:
    """Run the job."""
    rows: Any = [{"text": text} for text in job.texts()]
    for call in CALLS:
        rows = Call(job, call)(rows, working_dir=job.folder).dataset
    done(list(rows))


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
