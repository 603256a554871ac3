"""A server with and without speculation: parity, then throughput and latency at several concurrencies."""
