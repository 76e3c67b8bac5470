// Listens on an address; prints the next event, which must be DEVICE_REMOVAL, and what rdma_listen returns after it.
// program ADDRESS PORT
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int right, const char *what) {
    if (!right) {
        perror(what);
        _Exit(1);
    }
}

int main(int argc, char **argv) {
    must(argc == 3, "arguments");
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct rdma_cm_id *bound;
    must(!rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP), "rdma_create_id");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    must(!rdma_bind_addr(bound, (struct sockaddr *)&address), "rdma_bind_addr");
    must(!rdma_listen(bound, 4), "rdma_listen");
    printf("listening\n");
    fflush(stdout);
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    must(poll(&ready, 1, 20000) == 1, "no event");
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    printf("%s of %s\n", rdma_event_str(event->event), event->id == bound ? "the bound id" : "another id");
    rdma_ack_cm_event(event);
    int result = rdma_listen(bound, 4);
    printf("listen: %d, errno %d\n", result, result ? errno : 0);
    must(!rdma_destroy_id(bound), "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
    return 0;
}
