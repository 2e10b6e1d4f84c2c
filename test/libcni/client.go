// A container runtime with nothing but Go's libcni: runs one verb for one attachment, like all common runtimes.
//
// usage: client VERB CONFLIST CONTAINER-ID NETNS INTERFACE CACHE-DIRECTORY BIN-DIRECTORIES CAPABILITIES
// CAPABILITIES is a JSON object, as a runtime has it for the pod. The result is printed as JSON; a failure is printed as
// libcni's error on standard error, with exit code 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

func call(arguments []string) (interface{}, error) {
	verb, path, binaries := arguments[0], arguments[1], strings.Split(arguments[6], ":")
	list, err := libcni.ConfListFromFile(path)
	if err != nil {
		return nil, err
	}
	attachment := &libcni.RuntimeConf{
		ContainerID: arguments[2],
		NetNS:       arguments[3],
		IfName:      arguments[4],
		Args:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "libcni"}},
	}
	if err := json.Unmarshal([]byte(arguments[7]), &attachment.CapabilityArgs); err != nil {
		return nil, err
	}
	cni := libcni.NewCNIConfigWithCacheDir(binaries, arguments[5], nil)
	ctx := context.Background()
	switch verb {
	case "validate":
		return cni.ValidateNetworkList(ctx, list)
	case "add":
		return cni.AddNetworkList(ctx, list, attachment)
	case "check":
		return nil, cni.CheckNetworkList(ctx, list, attachment)
	case "del":
		return nil, cni.DelNetworkList(ctx, list, attachment)
	case "cached":
		return cni.GetNetworkListCachedResult(list, attachment)
	}
	return nil, fmt.Errorf("unknown verb %s", verb)
}

func main() {
	answer, err := call(os.Args[1:])
	if err != nil {
		// The plugin's error with its code, wherever libcni keeps it.
		var answered *types.Error
		if errors.As(err, &answered) {
			fmt.Fprintf(os.Stderr, "code %d: ", answered.Code)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
