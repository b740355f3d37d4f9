"""OpenAI's protocol: any OpenAI client can use an agent of the gateway as a model."""
