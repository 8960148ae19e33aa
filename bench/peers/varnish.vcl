# Pages of the web server behind, kept for a day in memory, in both forms.
vcl 4.1;

backend web { .host = "127.0.0.1"; .port = "@WEB@"; }

sub vcl_recv {
    if (req.url ~ "^/proxy/") {
        set req.url = regsub(req.url, "^/proxy", "");
        return (pass);
    }
}

sub vcl_backend_response {
    set beresp.do_gzip = true;
}
