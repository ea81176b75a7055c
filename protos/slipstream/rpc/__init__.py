"""Bootstrap shared by every gRPC server and client of the project."""
