// The program of the cluster tests' containers.
//
//	pod pause                     waits until it is stopped
//	pod serve PORT [TO,…]         sends a datagram to each TO (host:port) as its first act; then answers by HTTP: / returns
//	                              {name, client}, /call?to=URL&to=… requests URLs and returns the failures, /datagrams
//	                              returns the datagrams that came: {port, from}; datagrams of TO are answered (see below)
//	pod sweep FROM,… TO,…         lets each server FROM (host:port) request all TO (URLs); prints the failures, exit code 1
//	pod call URL                  prints the answer
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	requestTimeout = 2 * time.Second
	// A service's rules and a route to a new block may arrive a moment after the pod.
	attempts = 5
	pause    = 500 * time.Millisecond
	parallel = 8
)

// Ports of datagrams. A datagram that comes to the first or second one is answered by one to the third and one to the fourth port
// of its sender, which are connections of their own.
var datagramPorts = []int{9000, 9001, 9002, 9003}

type datagram struct {
	Port int    `json:"port"`
	From string `json:"from"`
}

// The datagrams that came.
type datagrams struct {
	lock sync.Mutex
	all  []datagram
}

func (d *datagrams) listen(port int, socket *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		_, from, err := socket.ReadFromUDP(buffer)
		if err != nil {
			return
		}
		d.lock.Lock()
		d.all = append(d.all, datagram{port, from.IP.String()})
		d.lock.Unlock()
		if port < datagramPorts[2] {
			for _, answer := range datagramPorts[2:] {
				socket.WriteToUDP([]byte("answer"), &net.UDPAddr{IP: from.IP, Port: answer})
			}
		}
	}
}

// Keep-alive is off, so that each request is a new flow of the packet filter.
var client = &http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

func get(to string) (string, error) {
	var last error
	for attempt := 0; attempt < attempts; attempt++ {
		if attempt > 0 {
			time.Sleep(pause)
		}
		response, err := client.Get(to)
		if err != nil {
			last = err
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK {
			return string(body), nil
		}
		last = fmt.Errorf("%s: status %d, %v", to, response.StatusCode, err)
	}
	return "", last
}

// Calls all of a list, some at a time, and returns the failures.
func each(list []string, call func(string) []string) []string {
	var group sync.WaitGroup
	var lock sync.Mutex
	failures := []string{}
	slots := make(chan struct{}, parallel)
	for _, item := range list {
		group.Add(1)
		slots <- struct{}{}
		go func() {
			defer group.Done()
			found := call(item)
			lock.Lock()
			failures = append(failures, found...)
			lock.Unlock()
			<-slots
		}()
	}
	group.Wait()
	return failures
}

func serve(port string, first []string) error {
	came := &datagrams{all: []datagram{}}
	for _, port := range datagramPorts {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
		if err != nil {
			return err
		}
		go came.listen(port, socket)
	}
	for _, to := range first {
		if connection, err := net.Dial("udp", to); err == nil {
			connection.Write([]byte("first"))
			connection.Close()
		}
	}
	name, _ := os.Hostname()
	http.HandleFunc("/datagrams", func(w http.ResponseWriter, r *http.Request) {
		came.lock.Lock()
		defer came.lock.Unlock()
		json.NewEncoder(w).Encode(came.all)
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		json.NewEncoder(w).Encode(map[string]string{"name": name, "client": host})
	})
	http.HandleFunc("/call", func(w http.ResponseWriter, r *http.Request) {
		failures := each(r.URL.Query()["to"], func(to string) []string {
			if _, err := get(to); err != nil {
				return []string{fmt.Sprintf("%s: %v", name, err)}
			}
			return nil
		})
		json.NewEncoder(w).Encode(failures)
	})
	return http.ListenAndServe(":"+port, nil)
}

func sweep(from, to []string) []string {
	query := url.Values{"to": to}.Encode()
	slow := &http.Client{Timeout: time.Minute}
	return each(from, func(server string) []string {
		response, err := slow.Get("http://" + server + "/call?" + query)
		if err != nil {
			return []string{err.Error()}
		}
		defer response.Body.Close()
		var failures []string
		if err := json.NewDecoder(response.Body).Decode(&failures); err != nil {
			return []string{server + ": " + err.Error()}
		}
		return failures
	})
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "pause":
		select {}
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1], nil)
	case len(args) == 3 && args[0] == "serve":
		return serve(args[1], strings.Split(args[2], ","))
	case len(args) == 2 && args[0] == "call":
		body, err := get(args[1])
		fmt.Print(body)
		return err
	case len(args) == 3 && args[0] == "sweep":
		if failures := sweep(strings.Split(args[1], ","), strings.Split(args[2], ",")); len(failures) > 0 {
			return fmt.Errorf("%d failures\n%s", len(failures), strings.Join(failures, "\n"))
		}
		return nil
	}
	return fmt.Errorf("unknown arguments %q; see the first lines of main.go", args)
}

func main() {
	// The first process of a container ignores signals that it does not handle.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		os.Exit(0)
	}()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
