// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// What is said to a holder: one byte, and with keep the connections.
const (
	sayServer = 's' // which process is the server? The answer is four bytes
	sayKeep   = 'k' // hold these connections of the server's clients
	sayGive   = 'g' // give them back
	sayDone   = 'd'
)

// A holder is what a lease's server has for a parent where leases move. Both are frozen, written to images and made
// again on another host together; so both ends of the server's connections are, which the gateway, outside of that, hands
// over before (handover.go) and another gateway gets back afterwards.
type holder struct {
	mu     sync.Mutex
	server uint32
	kept   []int
}

// obey answers one connection.
func (h *holder) obey(conn *net.UnixConn) error {
	defer conn.Close()
	said, control := make([]byte, 1), make([]byte, syscall.CmsgSpace(4*mostStreams))
	n, more, _, _, err := conn.ReadMsgUnix(said, control)
	if err != nil || n != 1 {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch said[0] {
	case sayServer:
		var number [4]byte
		putNumber(number[:], h.server)
		_, err = conn.Write(number[:])
		return err
	case sayKeep:
		handed, err := rights(control[:more])
		if err != nil {
			return err
		}
		h.drop()
		h.kept = handed
		_, err = conn.Write([]byte{sayDone})
		return err
	case sayGive:
		if _, _, err := conn.WriteMsgUnix([]byte{sayDone}, syscall.UnixRights(h.kept...), nil); err != nil {
			return err
		}
		h.drop()
		return nil
	}
	return fmt.Errorf("a holder was told %d", said[0])
}

func (h *holder) drop() {
	for _, each := range h.kept {
		syscall.Close(each)
	}
	h.kept = nil
}

// rights returns what came with a message.
func rights(control []byte) (found []int, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for at := range messages {
		some, err := syscall.ParseUnixRights(&messages[at])
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	for _, each := range found {
		syscall.CloseOnExec(each)
	}
	return found, nil
}

func putNumber(to []byte, number uint32) {
	for at := range to {
		to[at] = byte(number >> (8 * at))
	}
}

// tell says something to a holder; it returns the answer's first byte, and what came with it.
func tell(socket string, said byte, handed ...int) ([]int, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline())
	if _, _, err := conn.WriteMsgUnix([]byte{said}, syscall.UnixRights(handed...), nil); err != nil {
		return nil, err
	}
	answered, control := make([]byte, 1), make([]byte, syscall.CmsgSpace(4*mostStreams))
	n, more, _, _, err := conn.ReadMsgUnix(answered, control)
	if err != nil {
		return nil, err
	}
	if n != 1 || answered[0] != sayDone {
		return nil, errors.New("the holder has not obeyed")
	}
	return rights(control[:more])
}

func runHold(words []string) error {
	set := flag.NewFlagSet("hold", flag.ExitOnError)
	socket := set.String("socket", "", "name of the socket on which the gateway hands connections over")
	_ = set.Parse(words) // it exits itself
	if *socket == "" || set.NArg() == 0 {
		return errors.New("hold: -socket and a command are needed")
	}
	// The server is killed with the thread that started it.
	runtime.LockOSThread()
	listening, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: *socket})
	if err != nil {
		return err
	}
	server := exec.Command(set.Arg(0), set.Args()[1:]...)
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		return err
	}
	h := &holder{server: uint32(server.Process.Pid)}
	go func() {
		for {
			conn, err := listening.AcceptUnix()
			if err != nil {
				return
			}
			if err := h.obey(conn); err != nil {
				log("hold: %v", err)
			}
		}
	}()
	err = server.Wait()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		os.Exit(ended.ExitCode())
	}
	return err
}
