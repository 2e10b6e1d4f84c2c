// The program agnhost of the tests' images, with SCTP also on a kernel without CONFIG_IP_SCTP: there, `connect` and `porter`
// exchange the four packets that open an association through a raw socket. agnhost-upstream does everything else.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	upstream     = "/agnhost-upstream"
	portPrefix   = "SERVE_SCTP_PORT_"
	retransmit   = time.Second
	protocolSCTP = 132
)

// Chunks of RFC 9260.
const (
	initiation    = 1
	initiationAck = 2
	abort         = 6
	cookieEcho    = 10
	cookieAck     = 11
)

const (
	headerSize = 12
	chunkSize  = 4
	// Offset of the State Cookie's value in a chunk INIT ACK without other parameters, and the value's size.
	cookieOffset = 24
	cookieSize   = 4
)

type packet struct {
	from, to uint16
	tag      uint32
	chunk    byte
	body     []byte
}

func (p packet) bytes() []byte {
	text := binary.BigEndian.AppendUint16(nil, p.from)
	text = binary.BigEndian.AppendUint16(text, p.to)
	text = binary.BigEndian.AppendUint32(text, p.tag)
	text = append(text, 0, 0, 0, 0, p.chunk, 0)
	text = binary.BigEndian.AppendUint16(text, uint16(chunkSize+len(p.body)))
	text = append(text, p.body...)
	sum := crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(text[8:], sum)
	return text
}

// Reads the first chunk of a packet.
func read(text []byte) (packet, bool) {
	if len(text) < headerSize+chunkSize {
		return packet{}, false
	}
	p := packet{
		from:  binary.BigEndian.Uint16(text),
		to:    binary.BigEndian.Uint16(text[2:]),
		tag:   binary.BigEndian.Uint32(text[4:]),
		chunk: text[headerSize],
		body:  text[headerSize+chunkSize:],
	}
	needed := map[byte]int{initiation: 16, initiationAck: cookieOffset - chunkSize + cookieSize, cookieEcho: cookieSize}
	return p, len(p.body) >= needed[p.chunk]
}

// Initiate tag, window, streams in both directions, and the first sequence number.
func initiationBody(tag uint32) []byte {
	body := binary.BigEndian.AppendUint32(nil, tag)
	body = binary.BigEndian.AppendUint32(body, 65536)
	body = append(body, 0, 1, 0, 1)
	return binary.BigEndian.AppendUint32(body, tag)
}

func listen(ip net.IP) (net.PacketConn, error) {
	if ip.To4() != nil {
		return net.ListenPacket("ip4:"+strconv.Itoa(protocolSCTP), "0.0.0.0")
	}
	return net.ListenPacket("ip6:"+strconv.Itoa(protocolSCTP), "::")
}

var errTimeout = errors.New("TIMEOUT")

func connect(target string, timeout time.Duration) error {
	address, err := net.ResolveTCPAddr("tcp", target)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	socket, err := listen(address.IP)
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	to := &net.IPAddr{IP: address.IP, Zone: address.Zone}
	own, peer := uint16(32768+rand.IntN(28000)), uint16(address.Port)
	send := func(tag uint32, chunk byte, body []byte) error {
		if _, err := socket.WriteTo(packet{own, peer, tag, chunk, body}.bytes(), to); err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		return nil
	}
	tag, peerTag := rand.Uint32()|1, uint32(0)
	buffer := make([]byte, 2048)
	// The latest packet is sent again until its answer comes.
	again := func() error { return send(0, initiation, initiationBody(tag)) }
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		if err := again(); err != nil {
			return err
		}
		next := time.Now().Add(retransmit)
		if next.After(end) {
			next = end
		}
		socket.SetReadDeadline(next)
		for {
			count, from, err := socket.ReadFrom(buffer)
			if err != nil {
				break
			}
			answer, ok := read(buffer[:count])
			if !ok || answer.from != peer || answer.to != own || answer.tag != tag || from.String() != to.String() {
				continue
			}
			if answer.chunk == initiationAck && peerTag == 0 {
				peerTag = binary.BigEndian.Uint32(answer.body)
				cookie := bytes.Clone(answer.body[cookieOffset-chunkSize:][:cookieSize])
				again = func() error { return send(peerTag, cookieEcho, cookie) }
				break
			}
			if answer.chunk == cookieAck && peerTag != 0 {
				return send(peerTag, abort, nil)
			}
		}
	}
	return errTimeout
}

// Answers without a state: the cookie is the client's tag.
func serve(port uint16, socket net.PacketConn) error {
	buffer := make([]byte, 2048)
	for {
		count, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return err
		}
		came, ok := read(buffer[:count])
		if !ok || came.to != port {
			continue
		}
		answer := packet{from: port, to: came.from}
		switch came.chunk {
		case initiation:
			answer.tag, answer.chunk = binary.BigEndian.Uint32(came.body), initiationAck
			answer.body = append(initiationBody(rand.Uint32()|1), 0, 7, 0, 4+cookieSize)
			answer.body = append(answer.body, came.body[:cookieSize]...)
		case cookieEcho:
			answer.tag, answer.chunk = binary.BigEndian.Uint32(came.body), cookieAck
		default:
			continue
		}
		if _, err := socket.WriteTo(answer.bytes(), from); err != nil {
			fmt.Fprintf(os.Stderr, "SCTP port %d: %v\n", port, err)
		}
	}
}

func serveFamilies(port uint16) error {
	failed := make(chan error)
	for _, ip := range []net.IP{net.IPv4zero, net.IPv6zero} {
		socket, err := listen(ip)
		if err != nil {
			return err
		}
		go func() { failed <- serve(port, socket) }()
	}
	return <-failed
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func hasKernelSCTP() bool {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, protocolSCTP)
	if err == nil {
		syscall.Close(socket)
	}
	return !errors.Is(err, syscall.EPROTONOSUPPORT)
}

// Executes a command of SCTP. It returns for every other command.
func executeSCTP(command string, args []string) {
	switch command {
	case "connect":
		flags := flag.NewFlagSet(command, flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		protocol := flags.String("protocol", "", "")
		timeout := flags.Duration("timeout", 0, "")
		if flags.Parse(args) != nil || *protocol != "sctp" {
			return
		}
		if err := connect(flags.Arg(0), *timeout); err != nil {
			fail(err)
		}
		os.Exit(0)
	case "porter":
		for _, variable := range os.Environ() {
			text, _, _ := strings.Cut(strings.TrimPrefix(variable, portPrefix), "=")
			port, err := strconv.ParseUint(text, 10, 16)
			if strings.HasPrefix(variable, portPrefix) && err == nil {
				fail(serveFamilies(uint16(port)))
			}
		}
	}
}

func main() {
	if len(os.Args) > 1 && !hasKernelSCTP() {
		executeSCTP(os.Args[1], os.Args[2:])
	}
	fail(syscall.Exec(upstream, os.Args, os.Environ()))
}
