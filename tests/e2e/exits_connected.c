// A server with many connections ends by exit(): the peers must see the end of each connection.
// program server ADDRESS PORT COUNT | client ADDRESS PORT COUNT
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int right, const char *what) {
    if (!right) {
        perror(what);
        _Exit(1);
    }
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, int wait) {
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    if (poll(&ready, 1, wait) != 1)
        return NULL;
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    return event;
}

// The numbers of QPs that do not exist: only the connections matter.
static struct rdma_conn_param parameters(int number) {
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
    param.rnr_retry_count = 7;
    param.qp_num = 1000 + number;
    return param;
}

int main(int argc, char **argv) {
    must(argc == 5, "arguments");
    int server = !strcmp(argv[1], "server"), count = atoi(argv[4]), up = 0, down = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    int ids = server ? 1 : count;
    for (int at = 0; at < ids; at++) {
        struct rdma_cm_id *id;
        must(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
        if (server) {
            must(!rdma_bind_addr(id, (struct sockaddr *)&address), "rdma_bind_addr");
            must(!rdma_listen(id, count), "rdma_listen");
        } else {
            must(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), "rdma_resolve_addr");
        }
    }
    int number = 0;
    struct rdma_cm_event *event;
    while (up < count && (event = next(channel, 30000))) {
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type kind = event->event;
        struct rdma_conn_param param = parameters(number);
        rdma_ack_cm_event(event);
        switch (kind) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
            must(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
            break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED:
            number++;
            must(!rdma_connect(id, &param), "rdma_connect");
            break;
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            number++;
            must(!rdma_accept(id, &param), "rdma_accept");
            break;
        case RDMA_CM_EVENT_CONNECT_RESPONSE:
            must(!rdma_establish(id), "rdma_establish");
            up++;
            break;
        case RDMA_CM_EVENT_ESTABLISHED:
            up++;
            break;
        default:
            fprintf(stderr, "%s\n", rdma_event_str(kind));
            return 1;
        }
    }
    must(up == count, "too few connections");
    printf("connected\n");
    fflush(stdout);
    if (server)
        return 0;
    while (down < count && (event = next(channel, 5000))) {
        down += event->event == RDMA_CM_EVENT_DISCONNECTED;
        rdma_ack_cm_event(event);
    }
    printf("ended: %d\n", down);
    return down != count;
}
