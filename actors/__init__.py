"""What lives inside Ray actors: the LLM engine, the synthesis worker, the memory."""
