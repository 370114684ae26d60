filedesc://c.arc 192.0.2.1 20080430204826 text/plain 67
1 0 Example
URL IP-address Archive-date Content-type Archive-length

http://example.org/ 192.0.2.1 20080430204826 text/html 139
HTTP/1.1 200 OK
Content-Type: text/html; charset=utf-8

<html><head><title>t</title></head><body><p>one two three four</p></body></html>
http://example.org/ 192.0.2.1 20080430204826 text/html 139
HTTP/1.1 200 OK
Content-Type: text/html; charset=utf-8

<html><head><title>t</title></head><body><p>one two three four</p></body></html>
