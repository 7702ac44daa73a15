// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// So many may be there at once who have not shown a certificate yet.
const mostHandshakes = 16

// A porch is where they wait. When there is one too many, the one is cut that has waited longest of the address from
// which most wait: so idle connections hold off nobody, and those of one address no other address's.
type porch struct {
	mu    sync.Mutex
	waits []net.Conn // in the order in which they came
}

func (p *porch) enter(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits = append(p.waits, conn); len(p.waits) <= mostHandshakes {
		return
	}
	oldest, most, of := map[string]int{}, 0, ""
	count := map[string]int{}
	for at, each := range p.waits {
		from := addressOf(each)
		if _, is := oldest[from]; !is {
			oldest[from] = at
		}
		if count[from]++; count[from] > most {
			most, of = count[from], from
		}
	}
	p.waits[oldest[of]].Close() // its own goroutine ends by that
	p.waits = append(p.waits[:oldest[of]], p.waits[oldest[of]+1:]...)
}

// leave is for who has shown a certificate, or has gone; once or more.
func (p *porch) leave(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, each := range p.waits {
		if each == conn {
			p.waits = append(p.waits[:at], p.waits[at+1:]...)
			return
		}
	}
}

// addressOf returns where a connection comes from, without its port.
func addressOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

// A gateway is the end of a lease's streams beside its server, in the server's namespace. What counts it learns from
// who started it, one JSON object a line, each answered with {"epoch": E, "address": A, "ended": the server has,
// "bytes": that came from it and went to it}:
//
//	{"epoch": 3, "client": HOST, "mbps": N}   take doormen of HOST that show epoch 3; others are cut before the answer
//	{"pki": {"ca": PEM, …}}                   let these certificates count; where they cannot, the answer has "trouble"
//	{"freeze": true}                          hand the connections to the holder; the answer has the rest as "session"
//	{"thaw": SESSION}                         go on with that, here or on another host
//	{}                                        what is so?
//
// It ends with its standard input. Until certificates count it takes nobody.
type gateway struct {
	pki      *pki
	lease    string
	ports    []string // of the server, on 127.0.0.1
	identity [idBytes]byte
	session  *session
	listener net.Listener
	serving  func() bool // the server is alive
	holder   string      // socket of what holds connections while the lease moves; "": it does not

	opened sync.Once

	mu      sync.Mutex
	frozen  bool
	terms   terms
	carries *sealed // the newest link
	socket  *net.TCPConn
}

// terms say who may connect.
type terms struct {
	Epoch  uint64 `json:"epoch"`
	Client string `json:"client"`
	MBps   uint64 `json:"mbps"`
}

// An order is one line of who started a gateway.
type order struct {
	terms
	PKI    *texts    `json:"pki"`
	Freeze bool      `json:"freeze"`
	Thaw   *handover `json:"thaw"`
}

const (
	bytesPerMB    = 1_000_000
	mostLineBytes = 256 << 20 // lists of revoked certificates can be long, and so can sessions
)

func newGateway(p *pki, lease string, ports []string, serving func() bool) (*gateway, error) {
	g := &gateway{pki: p, lease: lease, ports: ports, serving: serving}
	if _, err := rand.Read(g.identity[:]); err != nil {
		return nil, err
	}
	g.session = newSession([idBytes]byte{}, false)
	g.session.eof = serving
	g.session.accept = g.connect
	return g, nil
}

// connect leads a stream to the server.
func (g *gateway) connect(st *stream) {
	err := errors.New("no such port")
	var conn net.Conn
	if int(st.port) < len(g.ports) && g.serving() {
		conn, err = net.DialTimeout("tcp", "127.0.0.1:"+g.ports[st.port], handshakeLimit)
	}
	if err != nil {
		g.session.mu.Lock()
		g.session.drop(st, true)
		g.session.mu.Unlock()
		return
	}
	g.session.start(st, conn.(*net.TCPConn))
}

// serve takes doormen until the listener is closed.
func (g *gateway) serve() {
	waits := &porch{}
	for {
		conn, err := g.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			log("accept: %v", err)
			time.Sleep(retryLeast)
			continue
		}
		waits.enter(conn)
		go func() {
			plain := conn.(*net.TCPConn)
			leave := func() { waits.leave(plain) }
			defer leave()
			if err := g.door(plain, leave); err != nil && !errors.Is(err, io.EOF) {
				log("%v: %v", plain.RemoteAddr(), err)
			}
		}()
	}
}

// door takes one doorman, and carries the session on its connection until that breaks.
func (g *gateway) door(plain *net.TCPConn, shaken func()) error {
	defer plain.Close()
	_ = plain.SetDeadline(deadline())
	conn, err := g.pki.server(plain, func(state tls.ConnectionState) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		return named(state, g.terms.Client, x509.ExtKeyUsageClientAuth)
	})
	if err != nil {
		return err
	}
	defer g.pki.forget(conn)
	h, lease, err := readFrame(conn, admit)
	if err != nil {
		return err
	}
	shaken()
	if why := g.admit(conn, plain, string(lease), h.offset); why != "" {
		_, _ = conn.Write(frame(header{kind: refused}, []byte(why))) // it is cut next
		return errors.New(why)
	}
	if _, err := conn.Write(frame(header{kind: admitted}, nil)); err != nil {
		return err
	}
	_, payload, err := readFrame(conn, hello)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	g.mu.Lock()
	identity := g.identity
	g.mu.Unlock()
	return g.session.welcome(conn, identity, payload, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.carries == conn
	})
}

// admit says why a doorman may not connect; "": its connection counts from now on, and no older one.
func (g *gateway) admit(conn *sealed, plain *net.TCPConn, lease string, epoch uint64) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case lease != g.lease:
		return "another lease"
	case epoch == 0 || epoch != g.terms.Epoch:
		return fmt.Sprintf("epoch %d does not count", epoch)
	}
	if err := pace(plain, g.terms.MBps*bytesPerMB); err != nil {
		return err.Error()
	}
	if g.carries != nil {
		g.carries.Close()
	}
	g.carries, g.socket = conn, plain
	return ""
}

// learn has terms count; of who connected by others no byte is obeyed when it returns.
func (g *gateway) learn(given terms) error {
	g.mu.Lock()
	if given.Epoch < g.terms.Epoch || g.frozen {
		g.mu.Unlock()
		return nil // what is said comes late, too
	}
	known := g.terms
	g.terms = given
	if given.Epoch != known.Epoch || given.Client != known.Client {
		g.carries = nil
		g.mu.Unlock()
		g.session.cut()
		return nil
	}
	defer g.mu.Unlock()
	if g.carries == nil || given.MBps == known.MBps {
		return nil
	}
	if err := pace(g.socket, given.MBps*bytesPerMB); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil // the link has broken; the next one is paced when it comes
}

// open begins to take doormen, once certificates count.
func (g *gateway) open() {
	if g.pki.now.Load() != nil {
		g.opened.Do(func() { go g.serve() })
	}
}

// obey answers lines until their end.
func (g *gateway) obey(lines io.Reader, answers io.Writer) error {
	scanner, out := bufio.NewScanner(lines), json.NewEncoder(answers)
	scanner.Buffer(nil, mostLineBytes)
	for scanner.Scan() {
		var given order
		if err := json.Unmarshal(scanner.Bytes(), &given); err != nil {
			return err
		}
		trouble := ""
		var handed *handover
		if given.Freeze {
			made, err := g.freeze()
			if err != nil {
				return err // what it may have handed over is of no use without the rest
			}
			handed = made
		}
		if given.Thaw != nil {
			if err := g.thaw(given.Thaw); err != nil {
				return err
			}
		}
		if given.PKI != nil {
			if err := g.pki.take(*given.PKI); err != nil {
				trouble = err.Error()
			}
		}
		if given.Epoch != 0 {
			if err := g.learn(given.terms); err != nil {
				return err
			}
		}
		g.open()
		g.mu.Lock()
		state := map[string]any{
			"epoch": g.terms.Epoch, "address": g.listener.Addr().String(), "ended": !g.serving(),
			"bytes": atomic.LoadUint64(&g.session.moved),
		}
		g.mu.Unlock()
		if trouble != "" {
			state["trouble"] = trouble
		}
		if handed != nil {
			state["session"] = handed
		}
		if err := out.Encode(state); err != nil {
			return err
		}
	}
	return scanner.Err()
}

func runGateway(words []string) error {
	set := flag.NewFlagSet("gateway", flag.ExitOnError)
	p := &pki{}
	p.flags(set, "server")
	lease := set.String("lease", "", "uuid of the lease")
	where := set.String("listen", "", "ADDRESS:PORT, or fd:N for a socket that listens and was opened outside the namespace")
	ports := set.String("ports", "", "ports of the server on 127.0.0.1, separated by commas")
	handed := set.Bool("handed", false, "certificates come by standard input, and no file of them is read")
	pid := set.Int("server", 0, "number of the server's process")
	holder := set.String("holder", "", "socket of what holds connections while the lease moves")
	_ = set.Parse(words) // it exits itself
	// The server is of the same user, and is not to have the key.
	if err := hide(); err != nil {
		return err
	}
	if *lease == "" || len(*lease) > mostLeaseBytes || *ports == "" {
		return errors.New("gateway: -lease and -ports are needed")
	}
	started, _, err := processStat(*pid)
	if err != nil {
		return fmt.Errorf("gateway: -server: %w", err)
	}
	server, err := watchProcess(*pid, started)
	if err != nil {
		return err
	}
	if !*handed {
		if err := p.load(); err != nil {
			return err
		}
		onHangup(p.load)
	}
	// Its connections are closed before its pidfd says so: the kernel's flag of a process that ends is earlier still.
	serving := func() bool {
		_, exiting, err := processStat(*pid)
		return err == nil && !exiting && server.alive()
	}
	g, err := newGateway(p, *lease, strings.Split(*ports, ","), serving)
	if err != nil {
		return err
	}
	g.holder = *holder
	if g.listener, err = listenTCP(*where); err != nil {
		return err
	}
	go func() {
		server.wait()
		g.session.dropAll()
	}()
	g.open()
	return g.obey(os.Stdin, os.Stdout)
}

func listenTCP(where string) (net.Listener, error) {
	if !strings.HasPrefix(where, "fd:") {
		return net.Listen("tcp", where)
	}
	fd, err := strconv.Atoi(strings.TrimPrefix(where, "fd:"))
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), where)
	defer file.Close()
	return net.FileListener(file)
}
