/* The calls of two applications of UCX, in small. A server maps files, and a client reads them:
 *
 *   ucx_applications server lock|shuffle FOLDER
 *   ucx_applications client lock|shuffle FOLDER COUNT THREADS
 *
 * lock: ArgoDSM's global lock over MPI windows. The client reads a page that no access has touched yet. When the READ
 * is complete, it sends the "unlock" at once, and waits for the answer. COUNT pages, one thread.
 *
 * shuffle: SparkUCX's reducers. Each thread has its own worker and endpoint. It reads COUNT entries of an index, which
 * tell where blocks of data are, and then these blocks into fresh memory. The server has one worker for all of them. The
 * thread of this worker sleeps while it has nothing to do.
 *
 * The server writes its address to FOLDER/address. The client compares every byte and prints one line of JSON. Both end
 * when FOLDER/end exists: until then their counters can be read. */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum {
	PAGE = 4096,
	BLOCK = 3 * PAGE + 100, /* not a multiple of pages: neighbours share one */
	BLOCKS = 512,
	STEP = 211, /* between the blocks of neighbours in the index; prime to BLOCKS */
	UNLOCK = 1, /* active messages */
	ANSWER = 2,
	LIMIT = 60, /* s */
	PAUSE = 10000, /* us */
	LOOK = 200, /* ms */
};

/* What the index has of a block. */
struct entry {
	uint64_t offset, length;
};

/* A file of the server, in its memory. */
struct area {
	uint64_t address, key_length;
	uint8_t key[512];
};

/* FOLDER/address. */
struct server {
	struct area index, data;
	uint64_t address_length;
	uint8_t address[2048];
};

/* One thread of the client, and what it counts. */
struct reader {
	ucp_worker_h worker;
	ucp_ep_h endpoint;
	ucp_rkey_h index, data;
	int number;
	int answered; /* the last "unlock" with an answer */
	uint64_t operations, wrong;
	double seconds;
};

static int is_lock, count, threads;
static const char *folder;
static ucp_context_h context;
static struct server server;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		errx(1, "%s: %s", what, ucs_status_string(status));
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* A byte of a block, or of a page: no two blocks are equal. */
static uint8_t byte_of(uint64_t block, uint64_t at)
{
	return (block * BLOCK + at) * 0x9e3779b97f4a7c15 >> 56;
}

static uint64_t wrong_bytes(const uint8_t *bytes, uint64_t length, uint64_t block)
{
	uint64_t wrong = 0;

	for (uint64_t at = 0; at < length; at++)
		wrong += bytes[at] != byte_of(block, at);
	return wrong;
}

/* Of a file in the folder. */
static const char *path_of(const char *name)
{
	static char path[4096];

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		errx(1, "%s: the path is too long", name);
	return path;
}

static void wait_for(const char *name)
{
	while (access(path_of(name), F_OK))
		usleep(PAUSE);
}

static void start_ucx(void)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		.features = UCP_FEATURE_RMA | UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
		.mt_workers_shared = 1,
	};
	ucp_config_t *config;

	check(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	check(ucp_init(&params, config, &context), "ucp_init");
	ucp_config_release(config);
}

static ucp_worker_h create_worker(void)
{
	ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	ucp_worker_h worker;

	check(ucp_worker_create(context, &params, &worker), "ucp_worker_create");
	return worker;
}

/* Moves messages, or sleeps until there are some. Releases of UCX before 1.15 may raise no event for the end of a send
 * that they make while a connection is set up (pull request 8959), so the worker looks again after a while. */
static void progress_or_sleep(ucp_worker_h worker)
{
	struct pollfd wakeup = { .events = POLLIN };
	ucs_status_t status;

	if (ucp_worker_progress(worker))
		return;
	check(ucp_worker_get_efd(worker, &wakeup.fd), "ucp_worker_get_efd");
	status = ucp_worker_arm(worker);
	if (status == UCS_ERR_BUSY)
		return;
	check(status, "ucp_worker_arm");
	if (poll(&wakeup, 1, LOOK) < 0 && errno != EINTR)
		err(1, "poll");
}

/* The worker's thread waits for a request. With `lock` it sleeps meanwhile: then it gets a core at once when the
 * response comes, even on a busy machine, and the "unlock" leaves soon. Threads of SparkUCX poll. */
static void complete(ucp_worker_h worker, ucs_status_ptr_t request, const char *what)
{
	ucs_status_t status = UCS_PTR_STATUS(request);

	if (UCS_PTR_IS_PTR(request)) {
		while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
			if (is_lock)
				progress_or_sleep(worker);
			else
				ucp_worker_progress(worker);
		ucp_request_free(request);
	}
	check(status, what);
}

static void set_handler(ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t call, void *argument)
{
	ucp_am_handler_param_t params = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
		.id = id,
		.cb = call,
		.arg = argument,
	};

	check(ucp_worker_set_am_recv_handler(worker, &params), "ucp_worker_set_am_recv_handler");
}

/* Writes the bytes to a file, maps it and registers the mapping. No page of the mapping is touched. */
static void publish(struct area *area, const char *name, const uint8_t *bytes, size_t length)
{
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.length = length,
	};
	int file = open(path_of(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
	ucp_mem_h memory;
	size_t packed;
	void *key;

	if (file < 0 || write(file, bytes, length) != (ssize_t)length)
		err(1, "%s", name);
	params.address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (params.address == MAP_FAILED)
		err(1, "mmap of %s", name);
	/* The kernel would map the pages around a page fault too. */
	if (madvise(params.address, length, MADV_RANDOM))
		err(1, "madvise");
	check(ucp_mem_map(context, &params, &memory), "ucp_mem_map");
	check(ucp_rkey_pack(context, memory, &key, &packed), "ucp_rkey_pack");
	if (packed > sizeof(area->key))
		errx(1, "a key of %zu bytes", packed);
	memcpy(area->key, key, packed);
	area->key_length = packed;
	area->address = (uintptr_t)params.address;
	ucp_rkey_buffer_release(key);
	close(file);
}

/* The blocks lie in the file in another order than in the index. With `lock`, each block is a page. */
static void publish_files(void)
{
	size_t length = is_lock ? PAGE : BLOCK;
	uint8_t *data = malloc(BLOCKS * length);
	struct entry entries[BLOCKS];

	if (!data)
		err(1, "malloc");
	for (uint64_t block = 0; block < BLOCKS; block++) {
		uint64_t place = is_lock ? block : block * STEP % BLOCKS;

		entries[block] = (struct entry){ .offset = place * length, .length = length };
		for (uint64_t at = 0; at < length; at++)
			data[entries[block].offset + at] = byte_of(block, at);
	}
	publish(&server.index, "index", (uint8_t *)entries, sizeof(entries));
	publish(&server.data, "data", data, BLOCKS * length);
	free(data);
}

/* Called at the server: a client has sent the "unlock". */
static ucs_status_t answer(void *worker, const void *header, size_t header_length, void *data, size_t length,
                           const ucp_am_recv_param_t *param)
{
	ucp_request_param_t plain = { 0 };
	ucs_status_ptr_t request;

	(void)worker, (void)header, (void)header_length;
	if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) || length != sizeof(int))
		errx(1, "an active message that is no unlock");
	/* A handler makes no progress, so the request completes later. */
	request = ucp_am_send_nbx(param->reply_ep, ANSWER, NULL, 0, data, length, &plain);
	if (UCS_PTR_IS_ERR(request))
		check(UCS_PTR_STATUS(request), "ucp_am_send_nbx of the answer");
	if (UCS_PTR_IS_PTR(request))
		ucp_request_free(request);
	return UCS_OK;
}

/* Sleeps while there is nothing to do, as SparkUCX's listener does. */
static void *serve(void *argument)
{
	ucp_worker_h worker = argument;

	for (;;)
		progress_or_sleep(worker);
	return NULL;
}

static void run_server(void)
{
	ucp_worker_h worker = create_worker();
	ucp_address_t *address;
	char temporary[4096];
	pthread_t thread;
	size_t length;
	FILE *file;

	set_handler(worker, UNLOCK, answer, worker);
	publish_files();
	check(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
	if (length > sizeof(server.address))
		errx(1, "an address of %zu bytes", length);
	memcpy(server.address, address, length);
	server.address_length = length;
	/* A client finds all of the file, or none. */
	snprintf(temporary, sizeof(temporary), "%s", path_of("address.new"));
	file = fopen(temporary, "w");
	if (!file || fwrite(&server, sizeof(server), 1, file) != 1 || fclose(file) ||
	    rename(temporary, path_of("address")))
		err(1, "%s", temporary);
	if (pthread_create(&thread, NULL, serve, worker))
		errx(1, "pthread_create");
}

static void failed(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
	(void)argument, (void)endpoint;
	errx(1, "the endpoint failed: %s", ucs_status_string(status));
}

/* Called at the client. */
static ucs_status_t answered(void *argument, const void *header, size_t header_length, void *data, size_t length,
                             const ucp_am_recv_param_t *param)
{
	struct reader *reader = argument;

	(void)header, (void)header_length, (void)param;
	if (length != sizeof(reader->answered))
		errx(1, "an answer of %zu bytes", length);
	memcpy(&reader->answered, data, length);
	return UCS_OK;
}

static void connect_reader(struct reader *reader)
{
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
		              UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = (ucp_address_t *)server.address,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler = { failed, NULL },
	};

	reader->worker = create_worker();
	set_handler(reader->worker, ANSWER, answered, reader);
	check(ucp_ep_create(reader->worker, &params, &reader->endpoint), "ucp_ep_create");
	check(ucp_ep_rkey_unpack(reader->endpoint, server.index.key, &reader->index), "ucp_ep_rkey_unpack");
	check(ucp_ep_rkey_unpack(reader->endpoint, server.data.key, &reader->data), "ucp_ep_rkey_unpack");
}

/* Sends the "unlock" and waits for the answer to it. */
static void unlock(struct reader *reader, int number)
{
	ucp_request_param_t reply = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_REPLY };
	ucs_status_ptr_t request;

	request = ucp_am_send_nbx(reader->endpoint, UNLOCK, NULL, 0, &number, sizeof(number), &reply);
	complete(reader->worker, request, "ucp_am_send_nbx");
	while (reader->answered != number)
		progress_or_sleep(reader->worker);
}

/* Reads the server's page. Returns when the READ is complete. */
static void read_page(struct reader *reader, uint8_t *page, int number)
{
	ucp_request_param_t plain = { 0 };
	uint64_t from = server.data.address + (uint64_t)number * PAGE;

	memset(page, 0xee, PAGE);
	complete(reader->worker, ucp_get_nbx(reader->endpoint, page, PAGE, from, reader->data, &plain), "ucp_get_nbx");
}

static void *lock(void *argument)
{
	struct reader *reader = argument;
	uint8_t *page = aligned_alloc(PAGE, PAGE);
	double start;

	if (!page)
		err(1, "aligned_alloc");
	connect_reader(reader);
	/* From now on the QPs are connected, and the adapters have the pages of all buffers. The pause ends what the page
	 * faults of the first READ have begun. Later READs lack the server's page only. */
	unlock(reader, -1);
	read_page(reader, page, 0);
	usleep(10 * PAUSE);
	start = now();
	for (int number = 1; number <= count; number++) {
		read_page(reader, page, number);
		unlock(reader, number);
		reader->operations += 2;
		reader->wrong += wrong_bytes(page, PAGE, number);
	}
	reader->seconds = now() - start;
	free(page);
	return NULL;
}

static void flush(struct reader *reader)
{
	ucp_request_param_t plain = { 0 };

	complete(reader->worker, ucp_worker_flush_nbx(reader->worker, &plain), "ucp_worker_flush_nbx");
}

static void get(struct reader *reader, void *to, size_t length, uint64_t from, ucp_rkey_h key)
{
	ucs_status_t status = ucp_get_nbi(reader->endpoint, to, length, from, key);

	if (status != UCS_INPROGRESS)
		check(status, "ucp_get_nbi");
	reader->operations++;
}

static void *shuffle(void *argument)
{
	struct reader *reader = argument;
	size_t area = (size_t)count * BLOCK;
	struct entry *entries = calloc(count, sizeof(*entries));
	uint8_t *blocks = mmap(NULL, area, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	double start = now();

	if (!entries || blocks == MAP_FAILED)
		err(1, "memory");
	connect_reader(reader);
	for (int i = 0; i < count; i++) {
		uint64_t block = i * threads + reader->number;

		get(reader, &entries[i], sizeof(*entries), server.index.address + block * sizeof(*entries), reader->index);
	}
	flush(reader);
	for (int i = 0; i < count; i++) {
		if (entries[i].length != BLOCK || entries[i].offset > (uint64_t)(BLOCKS - 1) * BLOCK)
			errx(1, "entry %d is wrong", i);
		get(reader, blocks + (size_t)i * BLOCK, BLOCK, server.data.address + entries[i].offset, reader->data);
	}
	flush(reader);
	for (int i = 0; i < count; i++)
		reader->wrong += wrong_bytes(blocks + (size_t)i * BLOCK, BLOCK, i * threads + reader->number);
	reader->seconds = now() - start;
	return NULL;
}

static void run_client(void)
{
	struct reader *readers = calloc(threads, sizeof(*readers));
	pthread_t *ids = calloc(threads, sizeof(*ids));
	uint64_t operations = 0, wrong = 0;
	double seconds = 0;
	FILE *file;

	wait_for("address");
	file = fopen(path_of("address"), "r");
	if (!file || fread(&server, sizeof(server), 1, file) != 1 || !readers || !ids)
		err(1, "address");
	fclose(file);
	for (int i = 0; i < threads; i++) {
		readers[i].number = i;
		if (pthread_create(&ids[i], NULL, is_lock ? lock : shuffle, &readers[i]))
			errx(1, "pthread_create");
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		operations += readers[i].operations;
		wrong += readers[i].wrong;
		seconds = readers[i].seconds > seconds ? readers[i].seconds : seconds;
	}
	printf("{\"seconds\":%.6f,\"operations\":%" PRIu64 ",\"wrong\":%" PRIu64 "}\n", seconds, operations, wrong);
	if (fflush(stdout))
		err(1, "stdout");
}

int main(int argc, char **argv)
{
	int is_client = argc == 6 && !strcmp(argv[1], "client");

	if (!is_client && (argc != 4 || strcmp(argv[1], "server")))
		errx(2, "usage: ucx_applications server|client lock|shuffle FOLDER [COUNT THREADS]");
	is_lock = !strcmp(argv[2], "lock");
	folder = argv[3];
	if (is_client) {
		count = atoi(argv[4]);
		threads = atoi(argv[5]);
		if (count < 1 || threads < 1 || count * threads >= BLOCKS || (is_lock && threads > 1))
			errx(2, "COUNT and THREADS: less than %d blocks, and one thread with `lock`", BLOCKS);
	}
	alarm(LIMIT);
	start_ucx();
	if (is_client)
		run_client();
	else
		run_server();
	wait_for("end");
	/* UCX 1.11 to 1.14 may crash in ucp_cleanup, in uct_ib_md_close, if UCX_IB_REG_METHODS is odp: it takes the region
	 * for a list of parameters. So neither ucp_cleanup nor an exit handler runs. */
	_exit(0);
}
