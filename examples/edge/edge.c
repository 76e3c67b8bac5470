/* One process waits for a connection, another writes into its memory and reads that back. See README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weir/edge.h>

enum { SIZE = 4096, PATIENCE_MS = 10000 };
static char memory[SIZE];

static void check(int is_good, const char *what)
{
	if (!is_good) {
		fprintf(stderr, "%s: %s\n", what, edge_error());
		exit(1);
	}
}

static void wait_for(struct edge_connection *connection, int port)
{
	struct edge_event event = {0};
	/* The peer gets the address of the memory that it may use. */
	check(edge_tell(connection, (uintptr_t)memory) >= 0, "edge_tell");
	while (event.kind != EDGE_NOTIFIED)
		check(edge_wait_event(connection, -1, &event, PATIENCE_MS) == 1, "edge_wait_event");
	printf("port %d: the peer has written \"%s\"\n", port, memory);
	/* The peer ends the connection when it has read. */
	while (edge_wait_event(connection, -1, &event, PATIENCE_MS) == 1)
		;
}

static void request(struct edge_connection *connection)
{
	static char text[SIZE] = "hello, memory", copy[SIZE];
	struct edge_event event = {0};
	while (event.kind != EDGE_NOTIFIED)
		check(edge_wait_event(connection, -1, &event, PATIENCE_MS) == 1, "edge_wait_event");
	uint64_t remote = event.address;
	int64_t handle = edge_rdma_operation(connection, remote, text, SIZE, EDGE_WRITE, EDGE_NOTIFY);
	check(handle >= 0, "edge_rdma_operation");
	check(edge_wait_event(connection, handle, &event, PATIENCE_MS) == 1 && event.error == 0, "write");
	check(edge_read(connection, remote, copy, SIZE, 0) == 0, "edge_read");
	printf("read back \"%s\"\n", copy);
	check(edge_write(connection, 8, text, SIZE, 0) < 0, "a write to an address that is not allowed");
	printf("as it should be: %s\n", edge_error());
}

int main(int argc, char **argv)
{
	struct edge_options options;
	edge_default_options(&options);
	options.port = argc > 1 ? atoi(argv[1]) : EDGE_DEFAULT_PORT;
	const char *host = argc > 2 ? argv[2] : NULL;
	struct edge_range range = {memory, SIZE, EDGE_MAY_READ | EDGE_MAY_WRITE};
	struct edge_node *node = host ? edge_open(&options) : edge_listen(&options);
	check(node != NULL, "edge_open");
	struct edge_connection *connection =
		host ? edge_request_connection(node, host, options.port, NULL, 0, PATIENCE_MS)
		     : edge_connection_wait(node, &range, 1, PATIENCE_MS);
	check(connection != NULL, "no connection");
	if (host)
		request(connection);
	else
		wait_for(connection, options.port);
	edge_disconnect(connection);
	edge_close(node);
	return 0;
}
