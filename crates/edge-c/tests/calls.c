/* Calls with wrong arguments, operations that fail, polling, and the counters. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <weir/edge.h>

#undef NDEBUG
#include <assert.h>

static struct edge_node *listener;
static char area[1 << 20], other[1 << 20];

static void *wait_for(void *unused)
{
	struct edge_range range = {area, sizeof area, EDGE_MAY_READ | EDGE_MAY_WRITE};
	(void)unused;
	return edge_connection_wait(listener, &range, 1, 5000);
}

static void try_mode(int mode)
{
	struct edge_options options;
	struct edge_event event;
	struct edge_counters counters;
	struct edge_connection *taken, *connection;
	pthread_t thread;

	edge_default_options(&options);
	options.mode = mode;
	options.port = 0;
	options.measure = 1;
	assert((listener = edge_listen(&options)) != NULL);
	struct edge_node *node = edge_open(&options);
	assert(node != NULL);
	assert(pthread_create(&thread, NULL, wait_for, NULL) == 0);
	connection = edge_request_connection(node, "127.0.0.1", edge_port(listener), NULL, 0, 5000);
	assert(pthread_join(thread, (void **)&taken) == 0);
	assert(connection != NULL && taken != NULL);

	memset(other, 7, sizeof other);
	int64_t handle = edge_rdma_operation(connection, (uintptr_t)area, other, sizeof other, EDGE_WRITE, EDGE_NOTIFY);
	assert(handle >= 0);
	while (edge_query_event(connection, handle, &event) == 0)
		edge_query_event(taken, 999, NULL);
	assert(event.kind == EDGE_COMPLETED && event.error == 0 && event.handle == handle);
	assert(edge_query_event(connection, handle, &event) == -1 && errno == EINVAL);
	assert(memcmp(area, other, sizeof area) == 0);
	assert(edge_wait_event(taken, -1, &event, 5000) == 1);
	assert(event.kind == EDGE_NOTIFIED && event.address == (uintptr_t)area && event.size == sizeof area);
	assert(edge_wait_event(taken, -1, &event, 10) == 0);

	int64_t range = edge_register(taken, other, 100, EDGE_MAY_READ);
	char bytes[100];
	if (mode == EDGE_EVENTS) { /* or a thread would have to poll for the other side */
		assert(edge_read(connection, (uintptr_t)other, bytes, 100, 0) == 0 && bytes[99] == 7);
		assert(edge_write(connection, (uintptr_t)other, bytes, 1, 0) == -1 && errno == EREMOTEIO);
		assert(edge_write(connection, (uintptr_t)area, (void *)64, 100, 0) == -1 && errno == EFAULT);
		assert(strstr(edge_error(), "local memory"));
		struct pollfd poll_fd = {edge_event_descriptor(taken), POLLIN, 0};
		assert(poll(&poll_fd, 1, 0) == 0 && edge_tell(connection, 5) >= 0);
		assert(poll(&poll_fd, 1, 5000) == 1);
	}
	assert(edge_deregister(taken, range) == 0 && edge_deregister(taken, range) == -1 && errno == EINVAL);

	assert(edge_rdma_operation(connection, 0, other, 1, 2, 0) == -1 && errno == EINVAL);
	assert(edge_rdma_operation(connection, 0, other, 1, EDGE_WRITE, 16) == -1 && errno == EINVAL);
	assert(edge_rdma_operation(connection, 0, other, 1, EDGE_READ, EDGE_COPY) == -1 && errno == EINVAL);
	assert(edge_rdma_operation(connection, 0, other, (size_t)1 << 32, EDGE_WRITE, 0) == -1 && errno == EINVAL);
	assert(edge_rdma_operation(NULL, 0, other, 1, EDGE_WRITE, 0) == -1 && errno == EINVAL);
	assert(edge_query_event(connection, -2, NULL) == -1 && errno == EINVAL);
	assert(edge_register(taken, other, 1, 8) == -1 && errno == EINVAL);
	assert(edge_request_connection(listener, "127.0.0.1", 9, NULL, 0, 10) == NULL && errno == EINVAL);
	assert(edge_request_connection(node, "127.0.0.1", edge_port(listener), NULL, 0, 10) == NULL && errno == EISCONN);
	assert(edge_request_connection(node, "127.0.0.1", 9, NULL, 0, 20) == NULL && errno == ETIMEDOUT);
	assert(edge_request_connection(node, "127.0.0.1", 70000, NULL, 0, 20) == NULL && errno == EINVAL);
	assert(edge_get_counters(node, &counters, sizeof counters) == 0);
	assert(counters.bytes_sent >= sizeof area && counters.packet_ns > 0 && counters.device_ns > 0);

	edge_disconnect(taken);
	while (edge_wait_event(connection, -1, &event, 5000) == 1)
		;
	assert(errno == ECONNRESET);
	edge_close(node);
	edge_close(listener);
	assert(edge_rdma_operation(connection, 0, other, 1, EDGE_WRITE, 0) == -1 && errno == ECONNRESET);
	edge_disconnect(connection);
	edge_disconnect(NULL);
}

int main(void)
{
	struct edge_options options;
	try_mode(EDGE_EVENTS);
	try_mode(EDGE_POLLING);
	edge_default_options(&options);
	options.links = "nothere0";
	assert(edge_open(&options) == NULL && errno == ENODEV && strstr(edge_error(), "nothere0"));
	edge_default_options(&options);
	options.mode = 5;
	assert(edge_open(&options) == NULL && errno == EINVAL && strstr(edge_error(), "mode"));
	options.mode = 0;
	options.reserved[3] = 1;
	assert(edge_open(&options) == NULL && errno == EINVAL);
	assert(edge_port(NULL) == -1 && errno == EINVAL);
	return 0;
}
