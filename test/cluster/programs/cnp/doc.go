// Package cnp names the package of network-policy-api's conformance tests, so that go.mod has what they need.
package cnp

import (
	_ "sigs.k8s.io/network-policy-api/conformance"
	_ "sigs.k8s.io/network-policy-api/conformance/tests"
)
