import { expect, test } from 'vitest';

import { junitOf } from './junit.js';

test('counts cases, and escapes texts', () => {
  const passed = { group: 'pod-pod.IPv4', name: 'a → b', seconds: 0.0012, failure: '', skipped: '' };
  const report = junitOf('test', [
    passed,
    { ...passed, failure: 'rule "x" <drop> & more' },
    { ...passed, skipped: 'no pool' },
  ]);
  expect(report).toContain('<testsuites tests="3" failures="1" skipped="1">');
  expect(report).toContain('<testcase classname="pod-pod.IPv4" name="a → b" time="0.001"/>');
  expect(report).toContain('<failure message="rule &quot;x&quot; &lt;drop&gt; &amp; more"/>');
  expect(report).toContain('<skipped message="no pool"/>');
});
