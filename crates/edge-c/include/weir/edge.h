/* Operations on the memory of another process, over one or several network links (MultiEdge). See weir-edge(3). */
#ifndef WEIR_EDGE_H
#define WEIR_EDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGE_DEFAULT_PORT 19790

/* Sockets that listen for connections, or request them. */
struct edge_node;
/* A connection with another process. */
struct edge_connection;

/* What an operation does. */
enum { EDGE_WRITE, EDGE_READ };

/* Flags of an operation. */
enum {
	EDGE_BACKWARD_FENCE = 1 << 0, /* performed after all earlier ones of this side */
	EDGE_FORWARD_FENCE = 1 << 1,  /* performed before all later ones of this side */
	EDGE_NOTIFY = 1 << 2,         /* a write: the peer gets an event when it has been performed */
	EDGE_COPY = 1 << 3,           /* a write: the buffer may be used again when the call returns */
};

/* What the peer may do with a range; EDGE_PIN keeps its pages in memory. */
enum { EDGE_MAY_READ = 1 << 0, EDGE_MAY_WRITE = 1 << 1, EDGE_PIN = 1 << 2 };

/* Memory of this process that the peer may use. */
struct edge_range {
	void *address;
	size_t size;
	unsigned access;
};

/* In place of the number of ranges: the peer may use each address of this process. */
#define EDGE_WHOLE_PROCESS (-1)

/* Which threads take packets: that of the node, or those of the program that ask for events. */
enum { EDGE_EVENTS, EDGE_POLLING };

/* How links are chosen. */
enum { EDGE_AUTO, EDGE_SRR, EDGE_WSRR, EDGE_WD };

struct edge_options {
	const char *links;    /* interfaces, as in "eth1,eth2=4", or "auto"; NULL: WEIR_LINKS, or "auto" */
	int port;             /* where edge_listen listens; 0: at a free port */
	int mode;             /* EDGE_EVENTS or EDGE_POLLING */
	int scheduler;        /* EDGE_AUTO, ... */
	int window;           /* packets under way, at most */
	int patience_ms;      /* a peer that is silent for so long counts as gone */
	int backlog;          /* connections that edge_connection_wait has not returned, at most */
	int copy_sends;       /* 1: writes are copied when their packets are sent */
	int copy_receives;    /* 1: packets are copied twice when they come */
	int measure;          /* 1: measure where CPU time goes */
	int reserved[8];      /* 0 */
};

/* Kinds of events. */
enum { EDGE_COMPLETED, EDGE_NOTIFIED };

struct edge_event {
	int kind;
	int error;        /* of EDGE_COMPLETED: 0, or an errno: EFAULT (here), EREMOTEIO (there), ETIMEDOUT, ECONNRESET */
	int64_t handle;   /* of EDGE_COMPLETED */
	uint64_t address; /* of EDGE_NOTIFIED: where the peer has written */
	uint64_t size;    /* of EDGE_NOTIFIED: bytes */
};

struct edge_counters {
	uint64_t packets_sent, bytes_sent, acknowledgements_sent;
	uint64_t packets_received, bytes_received, packets_refused;
	uint64_t sends, receives, empty_receives, sleeps;
	uint64_t completed, failed, notified;
	/* CPU time in ns, if edge_options.measure is set. */
	uint64_t poll_ns, send_copy_ns, receive_copy_ns, packet_ns, device_ns;
};

/* Functions that return a pointer return NULL on failure, others -1; errno says why, edge_error() in words. */

void edge_default_options(struct edge_options *options);

/* options may be NULL. */
struct edge_node *edge_listen(const struct edge_options *options);
struct edge_node *edge_open(const struct edge_options *options);
int edge_port(struct edge_node *node);
/* The node ends with its last connection. */
void edge_close(struct edge_node *node);

/* timeout_ms -1: without end; then errno is ETIMEDOUT. */
struct edge_connection *edge_connection_wait(struct edge_node *node, const struct edge_range *allowed, int count,
					     int timeout_ms);
struct edge_connection *edge_request_connection(struct edge_node *node, const char *host, int port,
						const struct edge_range *allowed, int count, int timeout_ms);
void edge_disconnect(struct edge_connection *connection);

/* Returns the handle of the operation. */
int64_t edge_rdma_operation(struct edge_connection *connection, uint64_t remote, void *local, size_t size,
			    int operation, unsigned flags);
/*
 * handle -1: the oldest event, but not the completion of an operation that a call waits for. Returns 1 if there is an
 * event, 0 if not (yet).
 */
int edge_query_event(struct edge_connection *connection, int64_t handle, struct edge_event *event);
int edge_wait_event(struct edge_connection *connection, int64_t handle, struct edge_event *event, int timeout_ms);
/* A descriptor that is readable while there are events, or if the connection has ended. */
int edge_event_descriptor(struct edge_connection *connection);

/* Return 0 when the operation is complete. */
int edge_write(struct edge_connection *connection, uint64_t remote, const void *local, size_t size, unsigned flags);
int edge_read(struct edge_connection *connection, uint64_t remote, void *local, size_t size, unsigned flags);
/* The peer gets EDGE_NOTIFIED with this number as address, and size 0. Returns the handle. */
int64_t edge_tell(struct edge_connection *connection, uint64_t number);

/* Returns the number of the range. */
int64_t edge_register(struct edge_connection *connection, void *address, size_t size, unsigned access);
int edge_deregister(struct edge_connection *connection, int64_t range);

/* size: sizeof(struct edge_counters). */
int edge_get_counters(struct edge_node *node, struct edge_counters *counters, size_t size);

/* What the latest call of this thread that failed says, until the next. */
const char *edge_error(void);

#ifdef __cplusplus
}
#endif

#endif
