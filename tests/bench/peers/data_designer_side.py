"""NeMo Data Designer: a structured column for each call, whose prompt refers to the columns before.

Each has a model of its own, because that is where the endpoint's `response_format` goes; they share one bound on the
requests at a time. Data Designer schedules cell by cell; all rows are in one row group, health checks, telemetry and
metrics are off, and the plain template engine is chosen.
"""

from __future__ import annotations

import sys

import data_designer.config as dd  # type: ignore[import-not-found]
from data_designer.interface import DataDesigner  # type: ignore[import-not-found]

from tests.bench.peers.job import CALLS, Job, done


def model(job: Job, call: str) -> dd.ModelConfig:
    """The model that answers a call in its form."""
    parameters = dd.ChatCompletionInferenceParams(
        max_parallel_requests=job.in_flight,
        max_tokens=2400,
        temperature=0.7,
        extra_body={"response_format": job.response_format(call)},
    )
    return dd.ModelConfig(
        alias=call, model="standin", provider="standin", inference_parameters=parameters, skip_health_check=True
    )


def main(job: Job) -> None:
    """Run the job."""
    rows = len(job.texts())
    config = dd.DataDesignerConfigBuilder(model_configs=[model(job, call) for call in CALLS])
    config.with_seed_dataset(dd.LocalFileSeedSource(path=job.dialogues))
    for call in CALLS:
        config.add_column(
            dd.LLMStructuredColumnConfig(
                name=call,
                model_alias=call,
                system_prompt=job.system,
                prompt=job.template(call),
                output_format=job.schemas[call],
            )
        )
    provider = dd.ModelProvider(name="standin", endpoint=job.url, provider_type="openai", api_key="EMPTY")
    designer = DataDesigner(artifact_path=job.folder, model_providers=[provider])
    designer.set_run_config(
        dd.RunConfig(buffer_size=rows, otel_metrics_port=None, jinja_rendering_engine=dd.JinjaRenderingEngine.NATIVE)
    )
    made = designer.create(config, num_records=rows).load_dataset()
    done(made.to_dict("records"))


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
