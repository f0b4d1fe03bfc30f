"""distilabel: one `TextGeneration` task for each call, in a chain; each a process, as its pipelines are.

As its documentation has it, concurrency is the size of a task's batches, whose calls run at once; eight tasks work on
eight batches side by side. The endpoint is told the schema directly: `structured_output` would go through instructor,
which is slower. Answers aren't validated. Caching is off.
"""

from __future__ import annotations

import sys

from distilabel.models.llms import OpenAILLM  # type: ignore[import-not-found]
from distilabel.pipeline import Pipeline  # type: ignore[import-not-found]
from distilabel.steps import LoadDataFromDicts  # type: ignore[import-not-found]
from distilabel.steps.tasks import TextGeneration  # type: ignore[import-not-found]

from tests.bench.peers.job import CALLS, Job, before, done


def main(job: Job) -> None:
    """Run the job."""
    texts = job.texts()
    # Small enough that all tasks have work, large enough to fill the slots from the first task on.
    batch = max(1, min(job.in_flight // 2, len(texts) // 4))
    with Pipeline(name="eight-calls") as pipeline:
        step = LoadDataFromDicts(data=[{"text": text} for text in texts], batch_size=batch)
        for call in CALLS:
            extra = {"response_format": job.response_format(call)}
            task = TextGeneration(
                name=call,
                llm=OpenAILLM(
                    model="standin",
                    base_url=job.url,
                    api_key="EMPTY",
                    generation_kwargs={"max_new_tokens": 2400, "temperature": 0.7, "extra_body": extra},
                ),
                system_prompt=job.system,
                template=job.template(call),
                columns=["text", *before(call)],
                output_mappings={"generation": call, "model_name": f"model_{call}"},
                input_batch_size=batch,
                add_raw_input=False,
                add_raw_output=False,
            )
            step >> task
            step = task
    made = pipeline.run(use_cache=False)
    done(list(made["default"]["train"]))


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
