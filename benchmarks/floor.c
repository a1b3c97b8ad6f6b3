/* The floor: what reading N streams costs at the least. One thread, epoll, one recvmsg a ready socket with the kernel's
 * receive stamp, the stamp kept; nothing is parsed. At the lowest real-time priority, if asked and allowed.
 *
 *   floor HOST PORT STREAMS WARM_S MEASURE_S real-time|ordinary < request-head-and-body
 *
 * Prints one line of JSON: the span in CLOCK_MONOTONIC ns, CPU s in it, reads, bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 16384
#define MOST 64000000

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: floor HOST PORT STREAMS WARM_S MEASURE_S real-time|ordinary < request\n");
        return 2;
    }
    int streams = atoi(argv[3]);
    static char request[1 << 20], buffer[BUFFER];
    size_t length = fread(request, 1, sizeof request, stdin);
    int64_t *stamps = malloc(MOST * sizeof *stamps);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &to.sin_addr);
    int poll = epoll_create1(0), one = 1;
    int *fds = malloc(streams * sizeof *fds);
    for (int i = 0; i < streams; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (fds[i] < 0 || connect(fds[i], (struct sockaddr *)&to, sizeof to)) die("connect");
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fds[i], SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event)) die("epoll_ctl");
    }
    struct sched_param least = {.sched_priority = 1}; /* as the load process: else it reads late, and many at once */
    if (!strcmp(argv[6], "real-time")) sched_setscheduler(0, SCHED_FIFO, &least);
    for (int i = 0; i < streams; i++)
        if (send(fds[i], request, length, 0) != (ssize_t)length) die("send");

    int64_t open_ns = now_ns() + (int64_t)(atof(argv[4]) * 1e9), close_ns = open_ns + (int64_t)(atof(argv[5]) * 1e9);
    int64_t reads = 0, bytes = 0;
    double cpu = 0;
    int inside = 0;
    struct epoll_event ready[1024];
    char control[128];
    for (;;) {
        int n = epoll_wait(poll, ready, 1024, 100);
        int64_t t = now_ns();
        if (!inside && t >= open_ns) {
            inside = 1, reads = bytes = 0, open_ns = t, cpu = cpu_s();
        }
        if (t >= close_ns) break;
        for (int i = 0; i < n; i++) {
            struct iovec part = {buffer, BUFFER};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                     .msg_controllen = sizeof control};
            ssize_t got = recvmsg(ready[i].data.fd, &message, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) die("a stream ended before its time");
            struct cmsghdr *extra = CMSG_FIRSTHDR(&message);
            if (extra && reads < MOST) {
                struct timespec *stamp = (struct timespec *)CMSG_DATA(extra);
                stamps[reads] = stamp->tv_sec * 1000000000LL + stamp->tv_nsec;
            }
            reads++, bytes += got;
        }
    }
    cpu = cpu_s() - cpu;
    printf("{\"open_ns\": %lld, \"close_ns\": %lld, \"cpu_s\": %.6f, \"reads\": %lld, \"bytes\": %lld}\n",
           (long long)open_ns, (long long)now_ns(), cpu, (long long)reads, (long long)bytes);
    return 0;
}
