"""The gateway: OpenAI HTTP and public gRPC in front of verify services. Never imports torch."""
