package lossylink

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable is set in a process that Start has started: its address and the descriptor of its socket to the test.
const variable = "GPUPIPE_TEST_LOSSYLINK"

// needs says what a system must permit.
const needs = "tests on emulated networks need user and network namespaces (sysctl user.max_user_namespaces above 0, " +
	"kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, --security-opt seccomp=unconfined in a container) and read and write permission " +
	"for /dev/net/tun (modprobe tun, --device /dev/net/tun in a container); NAMESPACES=none omits these tests"

// Omitted reports whether the user omits tests that need namespaces, by NAMESPACES=none.
func Omitted() bool { return os.Getenv("NAMESPACES") == "none" }

// start starts a process in namespaces of its own and returns the TUN device that it has opened there.
func start(c *exec.Cmd, address string) (*os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "socket"), os.NewFile(uintptr(ends[1]), "socket")
	defer ours.Close()
	if c.Env == nil {
		c.Env = os.Environ()
	}
	c.Env = append(c.Env, fmt.Sprintf("%s=%d,%s", variable, 3+len(c.ExtraFiles), address))
	c.ExtraFiles = append(c.ExtraFiles, theirs)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	err = c.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("start a process in namespaces of its own: %w; %s", err, needs)
	}
	return receive(int(ours.Fd()))
}

// receive takes the TUN device of a process, or the error that it reports.
func receive(socket int) (*os.File, error) {
	text, control := make([]byte, 1024), make([]byte, unix.CmsgSpace(4))
	n, size, _, _, err := unix.Recvmsg(socket, text, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, fmt.Errorf("the process has no network: %s; %s", text[:n], needs)
	}
	all, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(all[0]), "tun"), nil
}

// Enter opens the network of a process that Start has started, and does nothing in others. It removes its traces from
// the environment.
func Enter() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	_ = os.Unsetenv(variable)
	var socket int
	var address string
	if _, err := fmt.Sscanf(strings.Replace(text, ",", " ", 1), "%d %s", &socket, &address); err != nil {
		panic(fmt.Sprintf("%s=%s: %v", variable, text, err))
	}
	tun, err := open(netip.MustParseAddr(address))
	if err != nil {
		_ = unix.Sendmsg(socket, []byte(err.Error()), nil, nil, 0) // the test may be gone
		os.Exit(1)
	}
	if err := errors.Join(unix.Sendmsg(socket, nil, unix.UnixRights(tun), nil, 0), unix.Close(tun), unix.Close(socket)); err != nil {
		panic(err)
	}
}

// open makes a TUN device and gives it an address.
func open(address netip.Addr) (tun int, err error) {
	tun, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("/dev/net/tun: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(tun)
		}
	}()
	device, err := unix.NewIfreq("tun0")
	if err != nil {
		return 0, err
	}
	device.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, device); err != nil {
		return 0, fmt.Errorf("make a TUN device: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(s)
	mask := netip.AddrFrom4([4]byte{255, 255, 255, 0})
	return tun, errors.Join(setAddress(s, "tun0", unix.SIOCSIFADDR, address), setAddress(s, "tun0", unix.SIOCSIFNETMASK, mask),
		setUp(s, "tun0"), setUp(s, "lo"))
}

// setAddress sets an address of a network device.
func setAddress(socket int, name string, request uint, address netip.Addr) error {
	device, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := device.SetInet4Addr(address.AsSlice()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, request, device); err != nil {
		return fmt.Errorf("set %v of %s: %w", address, name, err)
	}
	return nil
}

// setUp starts a network device.
func setUp(socket int, name string) error {
	device, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	device.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, device); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}
