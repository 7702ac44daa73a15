// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The images of a lease that moves go from the host that it leaves to the one that it goes to:
//
//	sender ── TLS 1.3 ──> admit (lease, epoch) ── admitted <── a tar archive of plain files ──> admitted | refused
//
// Both ends show the certificates of hosts of GPUs (serverAuth). The last answer is given when the lease runs at the
// receiver: only then is it ended at the sender.
const (
	mostImages   = 100_000
	imageStall   = 30 * time.Second
	answerLimit  = 5 * time.Minute
	progressStep = 250 * time.Millisecond
)

// steady is a connection that breaks where nothing moves for a while.
type steady struct{ *sealed }

func (s steady) Read(b []byte) (int, error) {
	_ = s.SetReadDeadline(time.Now().Add(imageStall))
	return s.sealed.Read(b)
}

func (s steady) Write(b []byte) (int, error) {
	_ = s.SetWriteDeadline(time.Now().Add(imageStall))
	return s.sealed.Write(b)
}

// peer takes the connection of another host of GPUs. Its certificate is for servers, which Go takes from no client by
// itself.
func (p *pki) peer(plain net.Conn, host string) (*sealed, error) {
	config, found := p.config()
	config.ClientAuth = tls.RequireAnyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, each := range state.PeerCertificates[1:] {
			between.AddCert(each)
		}
		chains, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
			Roots: found.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return err
		}
		state.VerifiedChains = chains
		return found.judge(state, func(state tls.ConnectionState) error {
			return named(state, host, x509.ExtKeyUsageServerAuth)
		})
	}
	under := gather(plain)
	conn := &sealed{tls.Server(under, config), under}
	if err := conn.Handshake(); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// pack writes the plain files of a folder.
func pack(folder string, to io.Writer, moved func(int64)) error {
	listed, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	packed := tar.NewWriter(to)
	for _, each := range listed {
		info, err := each.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		file, err := os.Open(filepath.Join(folder, each.Name()))
		if err != nil {
			return err
		}
		err = packed.WriteHeader(&tar.Header{Name: each.Name(), Size: info.Size(), Mode: 0o600})
		if err == nil {
			_, err = io.Copy(packed, &counted{io.LimitReader(file, info.Size()), moved})
		}
		file.Close()
		if err != nil {
			return err
		}
	}
	return packed.Close()
}

type counted struct {
	io.Reader
	moved func(int64)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.moved(int64(n))
	return n, err
}

// unpack takes an archive of plain files into an empty folder, most bytes of them.
func unpack(folder string, from io.Reader, most int64) error {
	archive := tar.NewReader(from)
	for number := 0; ; number++ {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		plain := head.Typeflag == tar.TypeReg && head.Name != "" && !strings.HasPrefix(head.Name, ".")
		if !plain || strings.ContainsAny(head.Name, "/\x00") || number == mostImages {
			return fmt.Errorf("%q is no plain file of images", head.Name)
		}
		if most -= head.Size; head.Size < 0 || most < 0 {
			return errors.New("there are more bytes of images than were agreed")
		}
		file, err := os.OpenFile(filepath.Join(folder, head.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, archive)
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
}

func folderBytes(folder string) (sum int64, err error) {
	listed, err := os.ReadDir(folder)
	for _, each := range listed {
		info, failed := each.Info()
		if failed != nil {
			return 0, failed
		}
		sum += info.Size()
	}
	return sum, err
}

// A move is what both ends are told of one.
type move struct {
	pki    *pki
	lease  string
	epoch  uint64
	host   string // the other
	folder string
}

func moveFlags(name string, words []string, more func(*flag.FlagSet)) (*move, error) {
	set := flag.NewFlagSet(name, flag.ExitOnError)
	m := &move{pki: &pki{}}
	m.pki.flags(set, "server")
	set.StringVar(&m.lease, "lease", "", "uuid of the lease")
	set.Uint64Var(&m.epoch, "epoch", 0, "of its move")
	set.StringVar(&m.host, "host", "", "the other host, as its certificate names it")
	set.StringVar(&m.folder, "folder", "", "of the images")
	more(set)
	_ = set.Parse(words) // it exits itself
	if m.lease == "" || len(m.lease) > mostLeaseBytes || m.epoch == 0 || m.host == "" || m.folder == "" {
		return nil, errors.New(name + ": -lease, -epoch, -host and -folder are needed")
	}
	return m, m.pki.load()
}

// send returns when the receiver says that the lease runs there; an error is why it does not, as far as that is known.
func (m *move) send(address string, mbps uint64, progress func(sent, of int64)) error {
	dialed, err := net.DialTimeout("tcp", address, handshakeLimit)
	if err != nil {
		return err
	}
	plain := dialed.(*net.TCPConn)
	defer plain.Close()
	_ = plain.SetDeadline(deadline())
	conn, err := m.pki.client(plain, m.host)
	if err != nil {
		return err
	}
	defer m.pki.forget(conn)
	if err := pace(plain, mbps*bytesPerMB); err != nil {
		return err
	}
	if _, err := conn.Write(frame(header{kind: admit, offset: m.epoch}, []byte(m.lease))); err != nil {
		return err
	}
	if err := answered(conn); err != nil {
		return err
	}
	of, err := folderBytes(m.folder)
	if err != nil {
		return err
	}
	var sent int64
	last := time.Now()
	moved := func(n int64) {
		if sent += n; time.Since(last) >= progressStep || sent == of {
			last = time.Now()
			progress(sent, of)
		}
	}
	buffered := bufio.NewWriterSize(steady{conn}, mostDataBytes)
	if err := pack(m.folder, buffered, moved); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(answerLimit))
	return answered(conn)
}

func answered(conn io.Reader) error {
	h, why, err := readFrame(conn, admitted, refused)
	if err == nil && h.kind == refused {
		err = errors.New("refused: " + string(why))
	}
	return err
}

// receive takes the images from the one connection that may bring them; what runs returns why the lease does not run.
func (m *move) receive(listening net.Listener, most int64, runs func() string) error {
	for {
		plain, err := listening.Accept()
		if err != nil {
			return err
		}
		_ = plain.SetDeadline(deadline())
		over, err := m.take(plain, most, runs)
		plain.Close()
		if over {
			return err
		}
		log("%v: %v", plain.RemoteAddr(), err) // nobody that may: others are waited for
	}
}

// take says whether it was the one that may, and what became of it.
func (m *move) take(plain net.Conn, most int64, runs func() string) (bool, error) {
	conn, err := m.pki.peer(plain, m.host)
	if err != nil {
		return false, err
	}
	h, lease, err := readFrame(conn, admit)
	if err != nil {
		return false, err
	}
	if string(lease) != m.lease || h.offset != m.epoch {
		_, _ = conn.Write(frame(header{kind: refused}, []byte("another lease, or another move of it"))) // it is cut next
		return false, fmt.Errorf("epoch %d of lease %q does not move here", h.offset, lease)
	}
	if _, err := conn.Write(frame(header{kind: admitted}, nil)); err != nil {
		return true, err
	}
	why := ""
	if err := unpack(m.folder, bufio.NewReaderSize(steady{conn}, mostDataBytes), most); err != nil {
		why = err.Error()
	} else {
		why = runs()
	}
	_ = conn.SetDeadline(deadline())
	if why != "" {
		_, _ = conn.Write(frame(header{kind: refused}, []byte(cutText(why)))) // it is cut next
		return true, errors.New(why)
	}
	_, err = conn.Write(frame(header{kind: admitted}, nil))
	return true, err
}

func cutText(text string) string {
	return text[:least(uint64(len(text)), mostReasonText)]
}

func runSend(words []string) error {
	var address string
	var mbps uint64
	m, err := moveFlags("send", words, func(set *flag.FlagSet) {
		set.StringVar(&address, "to", "", "ADDRESS:PORT of the receiver")
		set.Uint64Var(&mbps, "mbps", 0, "megabytes a second at most; 0: no limit")
	})
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with who started this
		os.Exit(1)
	}()
	out := json.NewEncoder(os.Stdout)
	return m.send(address, mbps, func(sent, of int64) { _ = out.Encode(map[string]int64{"sent": sent, "of": of}) })
}

// runReceive tells its standard output where it listens, and that it has all; a line of standard input is the answer: ""
// where the lease runs, else why it does not.
func runReceive(words []string) error {
	var where string
	var most int64
	m, err := moveFlags("receive", words, func(set *flag.FlagSet) {
		set.StringVar(&where, "listen", "", "ADDRESS:PORT")
		set.Int64Var(&most, "most-bytes", 0, "of images")
	})
	if err != nil {
		return err
	}
	listening, err := listenTCP(where)
	if err != nil {
		return err
	}
	out, answers := json.NewEncoder(os.Stdout), make(chan string)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var why string
			if err := json.Unmarshal(lines.Bytes(), &why); err != nil {
				why = err.Error()
			}
			answers <- why
		}
		os.Exit(1) // it ends with who started this
	}()
	if err := out.Encode(map[string]string{"address": listening.Addr().String()}); err != nil {
		return err
	}
	return m.receive(listening, most, func() string {
		if err := out.Encode(map[string]bool{"received": true}); err != nil {
			return err.Error()
		}
		return <-answers
	})
}
