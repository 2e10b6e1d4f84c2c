// The one program of the tests' image, linked statically. Without arguments it waits, as a pod's first process does.
// serve PORT   sends each client of this TCP port the address that it comes from, one line each
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, NULL, WNOHANG) > 0) continue;
}

static int serve(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  if (bind(listener, (const struct sockaddr *)&any, sizeof any) != 0 || listen(listener, 16) != 0) {
    perror("serve");
    return 1;
  }
  for (;;) {
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    const int connection = accept(listener, (struct sockaddr *)&peer, &length);
    if (connection < 0) continue;
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &peer.sin_addr, address, sizeof address);
    dprintf(connection, "hello %s\n", address);
    close(connection);
  }
}

int main(int count, char **arguments) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  signal(SIGPIPE, SIG_IGN);
  if (count == 3 && strcmp(arguments[1], "serve") == 0) return serve(atoi(arguments[2]));
  for (;;) pause();
}
