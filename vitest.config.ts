import { defineConfig } from 'vitest/config';

export default defineConfig({
  // Workspaces resolve to their TypeScript sources, so tests need no build of ours but the native one.
  ssr: { resolve: { conditions: ['podwire:source', 'node', 'import', 'default'] } },
  test: {
    include: ['**/*.test.ts'],
    exclude: ['**/node_modules/**', '**/dist/**', '**/build/**'],
    pool: 'forks',
    // Files share the network namespace of test/support/isolated.mjs, however many processors there are.
    fileParallelism: false,
    setupFiles: ['test/support/clean-namespace.ts'],
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
