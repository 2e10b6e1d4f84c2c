import { expect, test } from 'vitest';

import { readConflist } from '../conflist.js';
import { isLoaded, rivalWarnings } from './rivals.js';

const file = (name: string, ...types: string[]) => ({
  name,
  content: readConflist(JSON.stringify({ name: 'n', plugins: types.map((type) => ({ type })) })),
});

test('files that runtimes load', () => {
  const names = ['a.conf', 'a.conflist', 'a.json', 'a.conflist.bak', '.podwire-install.0', 'a', 'calico-kubeconfig'];
  expect(names.filter(isLoaded)).toEqual(['a.conf', 'a.conflist', 'a.json']);
});

test('what comes before ours, what is Calico’s, and what is ours under another name', () => {
  const files = [
    file('00-multus.conf', 'multus'),
    file('10-calico.conflist', 'calico', 'portmap'),
    file('10-podwire.conflist', 'podwire'),
    file('20-podwire.conflist', 'podwire'),
    file('87-podman.conflist', 'bridge'),
    file('00-notes.txt', 'calico'),
  ];
  expect(rivalWarnings(files, '10-podwire.conflist')).toEqual([
    '00-multus.conf comes before 10-podwire.conflist, so container runtimes use it instead: remove it, or set CNI_CONF_NAME',
    '10-calico.conflist comes before 10-podwire.conflist, so container runtimes use it instead: remove it, or set CNI_CONF_NAME',
    '10-calico.conflist is Calico’s: remove it, and Calico’s installer, or set CNI_OLD_CONF_NAME=10-calico.conflist',
    '20-podwire.conflist has a podwire plugin too: remove it, or set CNI_OLD_CONF_NAME=20-podwire.conflist',
  ]);
  expect(rivalWarnings(files.slice(2, 3), '10-podwire.conflist')).toEqual([]);
});
