"""The proxy that the chaos bench puts between processes, for tests that cut one connection on purpose."""

from bench._chaos.tcp_proxy import TcpProxy, running_proxy

__all__ = ["TcpProxy", "running_proxy"]
