/** Most objects that a page of the contract may have. */
export const PAGE_SIZE = 1000;

/** @returns every page of a list, first to last */
export async function allPages<Page extends { readonly nextPageToken: string }>(
  read: (page: { readonly pageSize: number; readonly pageToken: string }) => Promise<Page>,
): Promise<Page[]> {
  const pages: Page[] = [];
  for (let pageToken: string | undefined = ''; pageToken !== undefined;) {
    const page: Page = await read({ pageSize: PAGE_SIZE, pageToken });
    pages.push(page);
    pageToken = page.nextPageToken === '' ? undefined : page.nextPageToken;
  }
  return pages;
}
