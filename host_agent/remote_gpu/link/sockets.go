// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Of linux/vm_sockets.h, asm-generic/socket.h and unistd.h; the same on amd64 and arm64.
const (
	afVsock         = 40
	anyCID          = 1<<32 - 1
	hostCID         = 2
	vsockAddrBytes  = 16
	soMaxPacingRate = 47
	sysPidfdOpen    = 434
	pollIn          = 1
)

// A listener takes guests' connections, with the CID that the kernel says they have.
type listener interface {
	take() (pipe, uint32, error)
	Close() error
}

// listen opens vsock:PORT, or unix:PATH where tests stand in for it.
func listen(where string) (listener, error) {
	network, address, _ := strings.Cut(where, ":")
	switch network {
	case "vsock":
		port, err := strconv.ParseUint(address, 10, 32)
		if err != nil {
			return nil, err
		}
		return listenVsock(uint32(port))
	case "unix":
		made, err := net.Listen("unix", address)
		if err != nil {
			return nil, err
		}
		return standIn{made.(*net.UnixListener)}, nil
	}
	return nil, fmt.Errorf("%q is neither vsock:PORT nor unix:PATH", where)
}

// reach connects to the doorman from a guest. On unix:PATH#CID the address that is bound first stands for the CID.
func reach(where string) (pipe, error) {
	network, address, _ := strings.Cut(where, ":")
	switch network {
	case "vsock":
		port, err := strconv.ParseUint(address, 10, 32)
		if err != nil {
			return nil, err
		}
		return dialVsock(uint32(port))
	case "unix":
		path, cid, _ := strings.Cut(address, "#")
		own, err := unique("cid-" + cid + "-")
		if err != nil {
			return nil, err
		}
		mine := &net.UnixAddr{Net: "unix", Name: own}
		return net.DialUnix("unix", mine, &net.UnixAddr{Net: "unix", Name: path})
	}
	return nil, fmt.Errorf("%q is neither vsock:PORT nor unix:PATH#CID", where)
}

// unique returns the name of a socket that no other process has: math/rand draws the same in each, by Go before 1.20.
func unique(name string) (string, error) {
	var drawn [8]byte
	_, err := rand.Read(drawn[:])
	return fmt.Sprintf("@numa-ext-%s%x", name, drawn), err
}

// A standIn has Unix sockets in place of vsock: the CID is what the client's own address says.
type standIn struct{ *net.UnixListener }

func (l standIn) take() (pipe, uint32, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, 0, err
	}
	var cid uint32
	if _, err := fmt.Sscanf(conn.RemoteAddr().String(), "@numa-ext-cid-%d-", &cid); err != nil {
		return conn, 0, nil // refused as any CID that no guest has
	}
	return conn, cid, nil
}

// A vsock is a socket of AF_VSOCK, which package net does not know, in the runtime's poller.
type vsock struct{ *os.File }

type vsockAddr [vsockAddrBytes]byte

func vsockAddress(cid, port uint32) (made vsockAddr) {
	binary.LittleEndian.PutUint16(made[:], afVsock)
	binary.LittleEndian.PutUint32(made[4:], port)
	binary.LittleEndian.PutUint32(made[8:], cid)
	return made
}

func (a vsockAddr) cid() uint32 { return binary.LittleEndian.Uint32(a[8:]) }

func vsockSocket() (int, error) {
	fd, err := syscall.Socket(afVsock, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}

// vsockCall does bind or connect.
func vsockCall(name string, number uintptr, fd int, address vsockAddr) error {
	for {
		_, _, failed := syscall.Syscall(number, uintptr(fd), uintptr(unsafe.Pointer(&address)), vsockAddrBytes)
		if failed == 0 {
			return nil
		} else if failed != syscall.EINTR {
			return os.NewSyscallError(name, failed)
		}
	}
}

func polled(fd int) (vsock, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return vsock{}, err
	}
	return vsock{os.NewFile(uintptr(fd), "vsock")}, nil
}

func listenVsock(port uint32) (listener, error) {
	fd, err := vsockSocket()
	if err != nil {
		return nil, err
	}
	if err = vsockCall("bind", syscall.SYS_BIND, fd, vsockAddress(anyCID, port)); err == nil {
		err = os.NewSyscallError("listen", syscall.Listen(fd, syscall.SOMAXCONN))
	}
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return polled(fd)
}

func (v vsock) take() (pipe, uint32, error) {
	raw, err := v.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var from vsockAddr
	var fd uintptr
	var failed syscall.Errno
	err = raw.Read(func(listening uintptr) bool {
		size := uint32(len(from))
		fd, _, failed = syscall.Syscall6(syscall.SYS_ACCEPT4, listening, uintptr(unsafe.Pointer(&from)),
			uintptr(unsafe.Pointer(&size)), syscall.SOCK_CLOEXEC, 0, 0)
		return failed != syscall.EAGAIN
	})
	if err == nil && failed != 0 {
		err = os.NewSyscallError("accept4", failed)
	}
	if err != nil {
		return nil, 0, err
	}
	made, err := polled(int(fd))
	return made, from.cid(), err
}

// dialVsock connects to the host; the kernel gives up after two seconds.
func dialVsock(port uint32) (pipe, error) {
	fd, err := vsockSocket()
	if err != nil {
		return nil, err
	}
	if err := vsockCall("connect", syscall.SYS_CONNECT, fd, vsockAddress(hostCID, port)); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return polled(fd)
}

// pace has the kernel send no faster; 0: as fast as it can.
func pace(conn *net.TCPConn, bytesPerSecond uint64) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if bytesPerSecond == 0 {
		bytesPerSecond = 1<<64 - 1
	}
	var failed syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, failed = syscall.Syscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, soMaxPacingRate,
			uintptr(unsafe.Pointer(&bytesPerSecond)), unsafe.Sizeof(bytesPerSecond), 0)
	})
	if err == nil && failed != 0 {
		err = os.NewSyscallError("setsockopt", failed)
	}
	return err
}

// A process is one for good: its number may be another's later, its pidfd is not.
type process struct{ *os.File }

// watchProcess opens the process of a number that began at that time (ticks since boot, proc(5)).
func watchProcess(pid int, started uint64) (process, error) {
	fd, _, failed := syscall.Syscall(sysPidfdOpen, uintptr(pid), syscall.O_NONBLOCK, 0)
	if failed != 0 {
		return process{}, os.NewSyscallError("pidfd_open", failed)
	}
	syscall.CloseOnExec(int(fd))
	p := process{os.NewFile(fd, "pidfd")}
	// The file of the number is the pidfd's only if it was read while the pidfd's process was alive.
	if found, _, err := processStat(pid); err != nil || found != started || !p.alive() {
		p.Close()
		return process{}, fmt.Errorf("process %d is another one, or gone", pid)
	}
	return p, nil
}

// processStat returns when a process began, and whether it is on its way to its end.
func processStat(pid int) (started uint64, exiting bool, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, true, err
	}
	// After the name, which may hold anything: state is field 3, flags 9, start 22 of proc(5).
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0, true, errors.New("a stat of another form")
	}
	const pfExiting = 4
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if err != nil {
		return 0, true, err
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return started, flags&pfExiting != 0 || fields[0] == "Z" || fields[0] == "X", err
}

func (p process) alive() bool {
	raw, err := p.SyscallConn()
	if err != nil {
		return false
	}
	ended := true
	if raw.Control(func(fd uintptr) { ended = readable(fd) }) != nil {
		return false
	}
	return !ended
}

// wait returns when the process has ended, or the pidfd is closed.
func (p process) wait() {
	if raw, err := p.SyscallConn(); err == nil {
		_ = raw.Read(readable) // closed
	}
}

func readable(fd uintptr) bool {
	asked := struct {
		fd              int32
		events, revents int16
	}{int32(fd), pollIn, 0}
	var now syscall.Timespec
	n, _, _ := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&asked)), 1,
		uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return n == 1
}

// hide keeps other processes of the same user from the memory of this one, and from what it has open.
func hide() error {
	const prSetDumpable = 4
	if _, _, failed := syscall.Syscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); failed != 0 {
		return os.NewSyscallError("prctl", failed)
	}
	return nil
}

// deadline is when an exchange must be over.
func deadline() time.Time { return time.Now().Add(handshakeLimit) }
