// Makes objects until a call fails because the process has no free descriptor; any other failure is an error.
// program channels|listeners|resolved|contexts LIMIT ADDRESS
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MOST 200

static int refuse(const char *call) {
    printf("refused: %s, errno %d\n", call, errno);
    return errno == EMFILE ? 0 : 1;
}

// librdmacm says ENODEV if it cannot open a device, and ENOMEM if it cannot open a channel of its own.
static int refuse_id(const char *call) {
    int right = errno == ENODEV || errno == ENOMEM;
    return refuse(call) && !right;
}

static int contexts(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    if (!devices)
        return refuse("ibv_get_device_list");
    for (int at = 0; at < MOST; at++) {
        struct ibv_context *context = ibv_open_device(devices[0]);
        if (!context)
            return refuse("ibv_open_device");
        if (!ibv_create_comp_channel(context))
            return refuse("ibv_create_comp_channel");
    }
    return 1;
}

static int ids(int listens, const char *address) {
    for (int at = 0; at < MOST; at++) {
        struct rdma_event_channel *channel = rdma_create_event_channel();
        if (!channel)
            return refuse("rdma_create_event_channel");
        struct rdma_cm_id *id;
        struct sockaddr_in to = {.sin_family = AF_INET};
        inet_pton(AF_INET, address, &to.sin_addr);
        if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
            return refuse_id("rdma_create_id");
        if (listens) {
            if (rdma_bind_addr(id, (struct sockaddr *)&to) || rdma_listen(id, 4))
                return refuse_id("rdma_bind_addr or rdma_listen");
            continue;
        }
        to.sin_port = htons(4000);
        if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000))
            return refuse_id("rdma_resolve_addr");
        struct rdma_cm_event *event;
        if (rdma_get_cm_event(channel, &event))
            return refuse_id("rdma_get_cm_event");
        // librdmacm makes it if it cannot open the device of the address; the status is always -1.
        if (event->event == RDMA_CM_EVENT_ADDR_ERROR) {
            errno = ENODEV;
            return refuse_id("RDMA_CM_EVENT_ADDR_ERROR");
        }
        struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
        if (rdma_create_qp(id, NULL, &attr))
            return refuse_id("rdma_create_qp");
    }
    return 1;
}

int main(int argc, char **argv) {
    struct rlimit limit = {.rlim_cur = argc == 4 ? atoi(argv[2]) : 0};
    limit.rlim_max = limit.rlim_cur;
    if (argc != 4 || setrlimit(RLIMIT_NOFILE, &limit))
        return 1;
    if (!strcmp(argv[1], "contexts"))
        return contexts();
    if (strcmp(argv[1], "channels"))
        return ids(!strcmp(argv[1], "listeners"), argv[3]);
    for (int at = 0; at < MOST; at++)
        if (!rdma_create_event_channel())
            return refuse("rdma_create_event_channel");
    return 1;
}
